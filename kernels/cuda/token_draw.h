// Tokens drawn from logits in a CUDA device's memory: of each row the token that the host's Sampler draws, since both compute by
// kernels/token_weight.h and kernels/token_noise.h, and no result depends on an order of tokens.
//
// Three launches: edits of single tokens; a scan of all rows for what is no number and for the largest logit of each block of
// 64 tokens; then a block of threads for each row, which goes through the row once or a few times for top_k and top_p, and else
// looks into few of its blocks.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/uploads.h"
#include "kernels/token_draw.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

class TokenDraws {
 public:
  // Launches on `stream`. What it was given has to stay until take(). std::invalid_argument for a vocabulary that is too large,
  // std::runtime_error for an error of CUDA.
  void start(std::span<TokenDraw* const> draws, CUstream_st* stream);
  // Once `stream` was waited for: fills in what was drawn.
  void take(std::span<TokenDraw* const> draws) const;

 private:
  Staging staging_;
  UploadRing table_;
  DeviceBuffer scratch_;
  HostBuffer drawn_;
};

}  // namespace smartkv::kernels::cuda

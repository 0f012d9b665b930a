// The device sampler of a CUDA device. It draws from each row of logits the token that the host's Sampler would draw:
// both compute by kernels/token_weight.h and kernels/token_noise.h, and no result depends on the order of tokens.
//
// There are three launches:
//  - edits of single tokens;
//  - a scan of all rows for NaN and +inf, and for the largest logit of each block of 64 tokens;
//  - a block of threads for each row. It goes through the row one or more times for top_k and top_p. Otherwise it looks
//    into few of the row's blocks.
#pragma once

#include <span>

#include "kernels/cuda/device_buffer.h"
#include "kernels/cuda/uploads.h"
#include "kernels/device_sampler.h"

struct CUstream_st;  // cudaStream_t points to it

namespace smartkv::kernels::cuda {

// Draws tokens for one batch of rows at a time.
class DeviceSamples {
 public:
  // Launches the draws on `stream`. REQUIRES: the draws and their data stay until take(). Throws std::invalid_argument
  // for a vocabulary that is empty or too large, and std::runtime_error on CUDA errors.
  void start(std::span<DeviceSample* const> draws, CUstream_st* stream);
  // Fills in what was drawn. REQUIRES: `stream` was waited for.
  void take(std::span<DeviceSample* const> draws) const;

 private:
  Staging staging_;
  UploadRing table_;
  DeviceBuffer scratch_;
  HostBuffer drawn_;
};

}  // namespace smartkv::kernels::cuda

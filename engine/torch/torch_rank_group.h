// Tensor-parallel ranks over the C++ API of torch.distributed (c10d). Host memory uses Gloo, GPUs use NCCL, and the
// ranks meet at a TCPStore.
#pragma once

#include <chrono>
#include <memory>
#include <string>

#include "engine/parallel/rank_group.h"

namespace at {
class Tensor;
}

namespace smartkv {

class TorchRankGroup : public RankGroup {
 public:
  // Replaces each element by its sum over all ranks. Every rank gets the same bits. Throws RankError. REQUIRES:
  // `values` is contiguous f32.
  virtual void sum(at::Tensor& values) = 0;
};

// Joins the group and returns once all ranks have joined. `device`, named as LibTorch names it, is where the tensors of
// sum() live. `timeout` is how long a rank waits for the others during a pass. Throws
// RankError, also if the device needs NCCL and the program was built without it. Throws ModelError if it was built
// without Gloo.
std::unique_ptr<TorchRankGroup> make_torch_rank_group(const RankPlace& place, const std::string& device,
                                                      std::chrono::milliseconds timeout = std::chrono::minutes(2));

}  // namespace smartkv

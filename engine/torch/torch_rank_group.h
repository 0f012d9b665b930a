// Ranks over torch.distributed's C++ API (c10d): Gloo in the host's memory, NCCL on GPUs; they meet at a TCPStore.
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
  // Each element becomes the sum of all ranks', the same bits in each. Contiguous f32. Throws RankError.
  virtual void sum(at::Tensor& values) = 0;
};

// Returns when all ranks are there. device: where sum()'s tensors live, as LibTorch names it. timeout: for which a rank waits for the
// others in a pass. Throws RankError; ModelError where the program was built without what it takes.
std::unique_ptr<TorchRankGroup> make_torch_rank_group(const RankPlace& place, const std::string& device,
                                                      std::chrono::milliseconds timeout = std::chrono::minutes(2));

}  // namespace smartkv

// Tensor-parallel ranks as threads of the test process. They talk over Gloo as processes do.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "engine/parallel/follower.h"
#include "engine/parallel/leading_model.h"
#include "engine/parallel/tensor_parallel.h"
#include "engine/torch/torch_rank_group.h"
#include "tests/engine/torch/torch_served.h"

namespace smartkv {

class RankThreads {
 public:
  // `weights` must outlive this object, which must outlive the model. kv_backends: one for each rank; null for the
  // CPU's.
  RankThreads(const Weights& weights, const std::string& dtype, int size,
              std::vector<std::shared_ptr<kernels::KvBackend>> kv_backends = {})
      : weights_(weights), size_(size), kv_backends_(std::move(kv_backends)) {
    kv_backends_.resize(static_cast<size_t>(size));
    options_.dtype = from_name<DataType>(dtype).value();
    place_ = listen_on_loopback(size);
    for (int rank = 1; rank < size; ++rank) threads_.emplace_back([this, rank] { run(rank); });
  }
  ~RankThreads() { join(); }

  // Returns the model of rank 0. Its destructor ends the other ranks. Call it once.
  std::unique_ptr<Model> lead() {
    const auto link = std::make_shared<RankLink>();
    auto group = make_torch_rank_group(place_, "cpu", kTimeout);
    auto part = part_of(*group, *group, pool_);
    link->join(std::move(group));
    return std::make_unique<LeadingModel>(std::move(part), link);
  }
  CacheShape shape(int rank = 0) const {
    return llama_cache_shape(shard_config(weights_.config(), {rank, size_}), options_);
  }

  // Make the other ranks end as if killed: at the next message from rank 0, or at the next boundary at which they would
  // exchange what they hold.
  void break_off() { broken_ = true; }
  void break_off_at_boundary() { broken_at_boundary_ = true; }
  // Makes the other ranks start without a calibration. REQUIRES: rank 0, for which they wait, has not been made.
  void forget_calibration() { calibrated_ = false; }
  // Returns the pool of a rank above 0. REQUIRES: rank 0 has been made.
  std::shared_ptr<PagePool> pool(int rank) {
    const std::lock_guard lock(mutex_);
    return pools_.at(rank);
  }
  void join() {
    for (std::thread& thread : threads_) {
      if (thread.joinable()) thread.join();
    }
  }
  std::vector<std::string> errors() {
    const std::lock_guard lock(mutex_);
    return errors_;
  }

 private:
  static constexpr std::chrono::milliseconds kTimeout = std::chrono::seconds(20);

  // Forwards what rank 0 sends until the test breaks it off.
  struct Breakable final : RankGroup {
    Breakable(RankGroup& all, const std::atomic<bool>& is_broken, const std::atomic<bool>& is_broken_at_boundary)
        : ranks(all), broken(is_broken), broken_at_boundary(is_broken_at_boundary) {}
    int rank() const override { return ranks.rank(); }
    int size() const override { return ranks.size(); }
    void send(std::span<const uint8_t> message) override { ranks.send(message); }
    std::vector<uint8_t> receive() override {
      std::vector<uint8_t> message = ranks.receive();
      if (broken) throw RankError("broken off");
      return message;
    }
    std::vector<std::vector<uint8_t>> gather(std::span<const uint8_t> own) override {
      if (broken_at_boundary) throw RankError("broken off");
      return ranks.gather(own);
    }
    void max(std::span<int64_t> values, bool patient) override { ranks.max(values, patient); }
    RankGroup& ranks;
    const std::atomic<bool>&broken, &broken_at_boundary;
  };

  // `told` is the group over which policies exchange. It forwards to `ranks`.
  std::unique_ptr<PartModel> part_of(TorchRankGroup& ranks, RankGroup& told, ThreadPool& pool) {
    const auto load = [&ranks](const Weights& weights, kernels::KvType type) {
      return make_torch_backend(weights, product_of(type), "cpu", 1, nullptr, &ranks);
    };
    return make_part(weights_, options_, pool, told, load, kv_backends_[static_cast<size_t>(ranks.rank())]);
  }

  void run(int rank) {
    try {
      const auto group = make_torch_rank_group({rank, size_, place_.port}, "cpu", kTimeout);
      ThreadPool pool(1);
      Breakable ranks(*group, broken_, broken_at_boundary_);
      const auto part = part_of(*group, ranks, pool);
      PolicyContext context = policy_context(*part, shape(rank), &pool);
      const CacheShape whole = llama_cache_shape(weights_.config(), options_);
      context.load_gate = [whole](const std::string&) { return random_gate(whole); };
      if (calibrated_) context.load_sensitivity = [whole] { return random_sensitivity(whole); };
      {
        const std::lock_guard lock(mutex_);
        pools_[rank] = context.pool;
      }
      meet_loaded(*group, part->weight_bytes());
      follow(ranks, *part, context);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      errors_.emplace_back(error.what());
    }
  }

  const Weights& weights_;
  int size_;
  ModelOptions options_;
  std::vector<std::shared_ptr<kernels::KvBackend>> kv_backends_;
  ThreadPool pool_{1};
  RankPlace place_;
  std::atomic<bool> broken_ = false, broken_at_boundary_ = false, calibrated_ = true;
  std::mutex mutex_;
  std::map<int, std::shared_ptr<PagePool>> pools_;
  std::vector<std::string> errors_;
  std::vector<std::thread> threads_;
};

}  // namespace smartkv

#include "engine/torch/torch_rank_group.h"

#include "engine/weights/weights.h"

#ifdef SMARTKV_GLOO
#include <torch/torch.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef SMARTKV_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include <algorithm>
#include <cstring>
#include <utility>

namespace smartkv {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kMeeting = std::chrono::minutes(1);
constexpr milliseconds kLoading = std::chrono::hours(1);
constexpr milliseconds kIdle = std::chrono::hours(24 * 365);

// Returns f(). Rethrows errors of LibTorch and Gloo as RankError, without the stack trace in LibTorch's messages.
template <typename F>
auto rank_errors(const F& f) {
  try {
    return f();
  } catch (const c10::Error& error) {
    throw RankError(std::string("LibTorch: ") + error.what_without_backtrace());
  } catch (const RankError&) {
    throw;
  } catch (const std::exception& error) {
    throw RankError(error.what());
  }
}

c10::intrusive_ptr<c10d::Store> meet(const RankPlace& place) {
  c10d::TCPStoreOptions options;
  options.port = place.port;
  options.isServer = place.rank == 0;
  options.waitWorkers = false;
  options.timeout = kMeeting;
  if (place.rank == 0) options.masterListenFd = place.listener;
  return c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
}

class C10dRankGroup final : public TorchRankGroup {
 public:
  C10dRankGroup(const RankPlace& place, const torch::Device& device, milliseconds timeout)
      : place_(place), timeout_(timeout) {
    const c10::intrusive_ptr<c10d::Store> store = meet(place);
    const auto options = c10d::ProcessGroupGloo::Options::create(kMeeting);
    options->devices = {c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")};
    host_ = c10::make_intrusive<c10d::ProcessGroupGloo>(c10::make_intrusive<c10d::PrefixStore>("host", store),
                                                        place.rank, place.size, options);
    sums_ = host_;
    if (device.is_cpu()) return;
#ifdef SMARTKV_NCCL
    sums_ = c10::make_intrusive<c10d::ProcessGroupNCCL>(c10::make_intrusive<c10d::PrefixStore>("device", store),
                                                        place.rank, place.size);
#else
    throw ModelError("tensor_parallel: expected device cpu, found \"" + device.str() +
                     "\": this program's LibTorch was built without NCCL");
#endif
  }

  int rank() const override { return place_.rank; }
  int size() const override { return place_.size; }

  void send(std::span<const uint8_t> message) override {
    rank_errors([&] {
      settle();
      broadcast(framed(message), timeout_);
      const auto size = static_cast<int64_t>(message.size()), first = first_of(size);
      if (first == size) return;
      at::Tensor rest = torch::empty({size - first}, torch::kUInt8);
      std::copy(message.begin() + first, message.end(), rest.data_ptr<uint8_t>());
      broadcast(rest, timeout_);
    });
  }

  std::vector<uint8_t> receive() override {
    return rank_errors([&] {
      at::Tensor frame = torch::empty({kFrame}, torch::kUInt8);
      broadcast(frame, kIdle);
      settle();
      int64_t size = 0;
      std::memcpy(&size, frame.data_ptr<uint8_t>(), kSize);
      std::vector<uint8_t> message(static_cast<size_t>(size));
      const int64_t first = first_of(size);
      std::copy_n(frame.data_ptr<uint8_t>() + kSize, first, message.begin());
      if (first == size) return message;
      at::Tensor rest = torch::from_blob(message.data() + first, {size - first}, torch::kUInt8);
      broadcast(rest, timeout_);
      settle();
      return message;
    });
  }

  // Gathers one frame of each rank, then, if a message is longer, as many more bytes as the longest one needs.
  std::vector<std::vector<uint8_t>> gather(std::span<const uint8_t> own) override {
    return rank_errors([&] {
      const at::Tensor frame = framed(own);
      const std::vector<at::Tensor> frames = gather(frame);
      std::vector<std::vector<uint8_t>> all;
      int64_t rest = 0;
      for (const at::Tensor& of : frames) {
        int64_t size = 0;
        std::memcpy(&size, of.data_ptr<uint8_t>(), kSize);
        all.emplace_back(static_cast<size_t>(size));
        std::copy_n(of.data_ptr<uint8_t>() + kSize, first_of(size), all.back().begin());
        rest = std::max(rest, size - first_of(size));
      }
      if (rest == 0) return all;
      at::Tensor left = torch::zeros({rest}, torch::kUInt8);
      const int64_t first = first_of(static_cast<int64_t>(own.size()));
      std::copy(own.begin() + first, own.end(), left.data_ptr<uint8_t>());
      const std::vector<at::Tensor> others = gather(left);
      for (size_t rank = 0; rank < all.size(); ++rank) {
        const int64_t had = first_of(static_cast<int64_t>(all[rank].size()));
        std::copy_n(others[rank].data_ptr<uint8_t>(), static_cast<int64_t>(all[rank].size()) - had,
                    all[rank].begin() + had);
      }
      return all;
    });
  }

  void max(std::span<int64_t> values, bool patient) override {
    rank_errors([&] {
      std::vector<at::Tensor> tensors = {
          torch::from_blob(values.data(), {static_cast<int64_t>(values.size())}, torch::kInt64)};
      reduce(*host_, tensors, c10d::ReduceOp::MAX, patient ? kLoading : timeout_);
    });
  }

  void sum(at::Tensor& values) override {
    rank_errors([&] {
      std::vector<at::Tensor> tensors = {values};
      reduce(*sums_, tensors, c10d::ReduceOp::SUM, timeout_);
    });
  }

 private:
  // A message begins with a frame of kFrame bytes: its size in kSize bytes, then the first bytes of the message.
  static constexpr int64_t kFrame = 4096, kSize = sizeof(int64_t);

  // Returns how many of the `size` bytes of a message its frame holds.
  static int64_t first_of(int64_t size) { return std::min(size, kFrame - kSize); }
  static at::Tensor framed(std::span<const uint8_t> message) {
    at::Tensor frame = torch::zeros({kFrame}, torch::kUInt8);
    const auto size = static_cast<int64_t>(message.size());
    std::memcpy(frame.data_ptr<uint8_t>(), &size, kSize);
    std::copy_n(message.begin(), first_of(size), frame.data_ptr<uint8_t>() + kSize);
    return frame;
  }
  std::vector<at::Tensor> gather(const at::Tensor& own) {
    std::vector<at::Tensor> inputs = {own};
    std::vector<std::vector<at::Tensor>> outputs(1);
    for (int rank = 0; rank < place_.size; ++rank) outputs[0].push_back(torch::empty_like(own));
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    host_->allgather(outputs, inputs, options)->wait();
    return outputs[0];
  }
  static void reduce(c10d::Backend& backend, std::vector<at::Tensor>& tensors, c10d::ReduceOp op,
                     milliseconds timeout) {
    c10d::AllreduceOptions options;
    options.reduceOp = std::move(op);
    options.timeout = timeout;
    backend.allreduce(tensors, options)->wait();
  }
  void broadcast(const at::Tensor& tensor, milliseconds timeout) {
    std::vector<at::Tensor> tensors = {tensor};
    c10d::BroadcastOptions options;
    options.rootRank = 0;
    options.timeout = timeout;
    in_flight_.push_back(host_->broadcast(tensors, options));
  }
  void settle() {
    for (const auto& work : std::exchange(in_flight_, {})) work->wait();
  }

  RankPlace place_;
  milliseconds timeout_;
  c10::intrusive_ptr<c10d::Backend> host_, sums_;
  std::vector<c10::intrusive_ptr<c10d::Work>> in_flight_;  // each keeps its tensors alive
};

}  // namespace

std::unique_ptr<TorchRankGroup> make_torch_rank_group(const RankPlace& place, const std::string& device,
                                                      milliseconds timeout) {
  return rank_errors([&] { return std::make_unique<C10dRankGroup>(place, torch::Device(device), timeout); });
}

}  // namespace smartkv
#else
namespace smartkv {

std::unique_ptr<TorchRankGroup> make_torch_rank_group(const RankPlace&, const std::string&, std::chrono::milliseconds) {
  throw ModelError(
      "tensor_parallel: expected 1, because this program was built without the Gloo headers (Debian: "
      "libgloo-dev); install them and configure again");
}

}  // namespace smartkv
#endif

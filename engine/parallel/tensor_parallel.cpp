#include "engine/parallel/tensor_parallel.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <thread>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/calibration/calibration.h"
#include "engine/log.h"
#include "engine/model/device.h"
#include "engine/model/policy_context.h"
#include "engine/model/torch_backend.h"
#include "engine/parallel/follower.h"
#include "engine/parallel/leading_model.h"
#include "engine/parallel/rank_processes.h"
#include "engine/weights/model_fingerprint.h"

namespace smartkv {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(RopeStretch, scaling, factor)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(ModelOptions, path, dtype, weights, weights_lock, backend, device, cuda_graphs,
                                   tensor_parallel, threads, context_length, rope_scaling, int4_floats, gates,
                                   channel_worth)

namespace {

std::unique_ptr<PartModel> load_part(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                     RankGroup& ranks, const std::function<void(double)>& progress) {
  const std::string device = device_of_rank(options.device, ranks.rank());
  const ProductType type = product_type(options);
  const auto load = [&](const Weights& served, kernels::KvType /*type*/) {
    return load_torch_backend(torch_backend_path(), served, type, device, pool.size(), progress, &ranks);
  };
  return make_part(weights, options, pool, ranks, load, device_kv_backend(device, pool));
}

void run(RankGroup& ranks) {
  const ModelOptions options = read_options(ranks.receive());
  ThreadPool pool(threads_of_rank(options.threads, ranks.rank(), ranks.size()));
  std::unique_ptr<PartModel> part;
  CacheShape shape;
  GateSources gates{.files = options.gates, .worth = options.channel_worth};
  std::shared_ptr<const Sensitivity> sensitivity;
  try {
    const std::unique_ptr<Weights> weights = Weights::open(options.path);
    part = load_part(*weights, options, pool, ranks, nullptr);
    gates.identity = model_identity(*weights);
    shape = llama_cache_shape(shard_config(weights->config(), shard_of(ranks)), options);
    sensitivity = find_sensitivity(calibration_file(*weights), llama_cache_shape(weights->config(), options));
  } catch (const std::exception& error) {
    log_error("rank " + std::to_string(ranks.rank()) + ": " + error.what());
  }
  meet_loaded(ranks, part == nullptr ? -1 : part->weight_bytes());
  follow(ranks, *part, policy_context(*part, shape, &pool, gates, [sensitivity] { return sensitivity; }));
}

int integer(const char* text) {
  int value = -1;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

std::vector<uint8_t> options_message(const ModelOptions& options) { return nlohmann::json::to_cbor(options); }

ModelOptions read_options(std::span<const uint8_t> message) {
  return nlohmann::json::from_cbor(message.begin(), message.end()).get<ModelOptions>();
}

int threads_of_rank(int threads, int rank, int ranks) {
  return std::max(1, threads / ranks + (rank < threads % ranks ? 1 : 0));
}

std::string device_of_rank(const std::string& device, int rank) {
  if (device == "cpu") return device;
  const size_t colon = device.find(':');
  return "cuda:" + std::to_string((colon == std::string::npos ? 0 : integer(device.c_str() + colon + 1)) + rank);
}

CacheShape ranked_cache_shape(const ModelConfig& config, const ModelOptions& options) {
  return llama_cache_shape(shard_config(config, {0, options.tensor_parallel}), options);
}

RankPlace listen_on_loopback(int ranks) {
  RankPlace place{.rank = 0, .size = ranks};
  place.listener = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  if (place.listener < 0 || ::bind(place.listener, generic, size) != 0 || ::listen(place.listener, SOMAXCONN) != 0 ||
      ::getsockname(place.listener, generic, &size) != 0) {
    const std::string why = std::strerror(errno);
    if (place.listener >= 0) ::close(place.listener);
    throw RankError("tensor_parallel: cannot open a port on the loopback interface: " + why);
  }
  place.port = ntohs(address.sin_port);
  return place;
}

std::unique_ptr<Model> load_ranked(const Weights& weights, const ModelOptions& options, ThreadPool& pool,
                                   const std::function<void(double)>& progress) {
  check_model_options(options);
  check_shards(weights.config(), options.tensor_parallel);
  const RankPlace place = listen_on_loopback(options.tensor_parallel);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::vector<std::string>> arguments;
  for (int rank = 1; rank < options.tensor_parallel; ++rank) {
    arguments.push_back({std::to_string(rank), std::to_string(options.tensor_parallel), std::to_string(place.port),
                         device_of_rank(options.device, rank)});
  }
  const auto link = std::make_shared<RankLink>();
  auto processes =
      std::make_unique<RankProcesses>(program, arguments, [link](const std::string& why) { link->lose(why); });
  link->watch();
  try {
    link->join(join_torch_ranks(torch_backend_path(), place, device_of_rank(options.device, 0)));
    link->group().send(options_message(options));
    std::unique_ptr<PartModel> part = load_part(weights, options, pool, link->group(), progress);
    return std::make_unique<LeadingModel>(std::move(part), link, std::move(processes));
  } catch (const RankError& error) {
    link->lose_by(error);
    throw RankError(link->lost());
  }
}

int run_rank(std::span<const char* const> arguments) {
  follow_parent();
  log_in_background();
  const LogFlush flush;
  if (arguments.size() != 4) {
    log_error("this command is internal; --tensor-parallel starts it");
    return 2;
  }
  const RankPlace place{.rank = integer(arguments[0]),
                        .size = integer(arguments[1]),
                        .port = static_cast<uint16_t>(integer(arguments[2]))};
  try {
    const std::unique_ptr<RankGroup> ranks = join_torch_ranks(torch_backend_path(), place, arguments[3]);
    run(*ranks);
    return 0;
  } catch (const std::exception& error) {
    log_error("rank " + std::to_string(place.rank) + ": " + error.what());
    // If another rank is gone, let rank 0 notice the end of that one first, so that it reports the cause.
    std::this_thread::sleep_for(std::chrono::seconds(1));
    return 1;
  }
}

}  // namespace smartkv

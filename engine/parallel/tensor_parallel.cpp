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
#include <vector>

#include <nlohmann/json.hpp>

#include "engine/log.h"
#include "engine/model/device.h"
#include "engine/model/policy_context.h"
#include "engine/model/torch_backend.h"
#include "engine/parallel/follower.h"
#include "engine/parallel/leading_model.h"
#include "engine/parallel/rank_processes.h"
#include "engine/weights/model_fingerprint.h"

namespace smartkv {
namespace {

using nlohmann::json;

json setup_json(const RankedModelOptions& options) {
  const auto by_name = [](const GateFiles& files) {
    json object = json::object();
    for (const auto& [name, file] : files) object[name] = file.string();
    return object;
  };
  const LlamaOptions& llama = options.llama;
  return {{"model", options.model.string()},   {"dtype", llama.dtype},       {"weights", llama.weights},
          {"context", llama.context_length},   {"backend", llama.backend},   {"device", llama.device},
          {"rope_scaling", llama.rope_scaling}, {"rope_factor", llama.rope_factor}, 
          {"gates", by_name(options.gates)},   {"channel_worth", by_name(options.channel_worth)}, {"threads", options.threads}};
}

RankedModelOptions read_setup(const json& setup, int ranks) {
  RankedModelOptions options;
  options.model = setup.at("model").get<std::string>();
  options.llama = {.dtype = setup.at("dtype"),
                   .weights = setup.at("weights"),
                   .context_length = setup.at("context"),
                   .rope_scaling = setup.at("rope_scaling"),
                   .rope_factor = setup.at("rope_factor"),
                   .backend = setup.at("backend"),
                   .device = setup.at("device")};
  for (const auto& [name, file] : setup.at("gates").items()) options.gates[name] = file.get<std::string>();
  for (const auto& [name, file] : setup.at("channel_worth").items()) options.channel_worth[name] = file.get<std::string>();
  options.ranks = ranks;
  options.threads = setup.at("threads");
  return options;
}

std::unique_ptr<PartModel> load_part(const Weights& weights, const RankedModelOptions& options, ThreadPool& pool, RankGroup& ranks,
                                     const std::function<void(double)>& progress) {
  const std::string device = device_of_rank(options.llama.device, ranks.rank());
  const auto load = [&](const Weights& served, kernels::KvType /*type*/) {
    return load_torch_backend(torch_backend_path(), served, product_type(options.llama), device, pool.size(), progress, &ranks);
  };
  return make_part(weights, options.llama, pool, ranks, load, device_kv_backend(device, pool));
}

void run(RankGroup& ranks) {
  const RankedModelOptions options = read_setup(json::from_cbor(ranks.receive()), ranks.size());
  ThreadPool pool(threads_of_rank(options.threads, ranks.rank(), ranks.size()));
  std::unique_ptr<PartModel> part;
  CacheShape shape;
  GateSources gates{.files = options.gates, .worth = options.channel_worth};
  try {
    const std::unique_ptr<Weights> weights = Weights::open(options.model);
    part = load_part(*weights, options, pool, ranks, nullptr);
    gates.identity = model_identity(*weights);
    shape = llama_cache_shape(shard_config(weights->config(), shard_of(ranks)), options.llama);
  } catch (const std::exception& error) {
    log_error("rank " + std::to_string(ranks.rank()) + ": " + error.what());
  }
  meet_loaded(ranks, part == nullptr ? -1 : part->weight_bytes());
  follow(ranks, *part, policy_context(*part, shape, &pool, gates));
}

int integer(const char* text) {
  int value = -1;
  std::from_chars(text, text + std::strlen(text), value);
  return value;
}

}  // namespace

void check_ranks(const RankedModelOptions& options) {
  if (options.ranks > 1 && options.llama.backend != "torch") {
    throw ModelError("tensor_parallel: expected 1 with backend " + options.llama.backend + ", found " + std::to_string(options.ranks) +
                     "; --backend torch supports several ranks");
  }
  if (options.ranks > 1 && options.llama.cuda_graphs == "on") {
    throw ModelError("cuda_graphs: expected auto or off with tensor_parallel " + std::to_string(options.ranks) +
                     ", because ranks communicate within a pass, found \"on\"");
  }
}

int threads_of_rank(int threads, int rank, int ranks) { return std::max(1, threads / ranks + (rank < threads % ranks ? 1 : 0)); }

std::string device_of_rank(const std::string& device, int rank) {
  if (device == "cpu") return device;
  const size_t colon = device.find(':');
  return "cuda:" + std::to_string((colon == std::string::npos ? 0 : integer(device.c_str() + colon + 1)) + rank);
}

CacheShape ranked_cache_shape(const ModelConfig& config, const RankedModelOptions& options) {
  return llama_cache_shape(shard_config(config, {0, options.ranks}), options.llama);
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

std::unique_ptr<Model> load_ranked(const Weights& weights, const RankedModelOptions& options, ThreadPool& pool,
                                   const std::function<void(double)>& progress) {
  check_ranks(options);
  check_shards(weights.config(), options.ranks);
  const RankPlace place = listen_on_loopback(options.ranks);
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  std::vector<std::vector<std::string>> arguments;
  for (int rank = 1; rank < options.ranks; ++rank) {
    arguments.push_back({std::to_string(rank), std::to_string(options.ranks), std::to_string(place.port),
                         device_of_rank(options.llama.device, rank)});
  }
  const auto link = std::make_shared<RankLink>();
  auto processes = std::make_unique<RankProcesses>(program, arguments, [link](const std::string& why) { link->lose(why); });
  link->watch();
  try {
    link->join(join_torch_ranks(torch_backend_path(), place, device_of_rank(options.llama.device, 0)));
    link->group().send(json::to_cbor(setup_json(options)));
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
  const RankPlace place{.rank = integer(arguments[0]), .size = integer(arguments[1]), .port = static_cast<uint16_t>(integer(arguments[2]))};
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

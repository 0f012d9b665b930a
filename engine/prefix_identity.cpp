#include "engine/prefix_identity.h"

#include <stdexcept>
#include <tuple>

#include <nlohmann/json.hpp>

#include "engine/engine_options.h"
#include "engine/model/torch_backend.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/structure_hash.h"
#include "kernels/cpu_level.h"

namespace smartkv {

// Returns all fields of LlamaOptions for the hash. Each of them changes bits. A new field does not compile until it is
// named here.
auto fields(const LlamaOptions& llama) {
  const auto& [dtype, weights, context_length, rope_scaling, rope_factor, backend, device, cuda_graphs, int4_floats] = llama;
  return std::tie(dtype, weights, context_length, rope_scaling, rope_factor, backend, device, cuda_graphs, int4_floats);
}

namespace {

// Adds the options that change bits to the hash. All options are named here, so that a new one does not compile until
// it is decided whether it changes bits.
void add_options(const EngineOptions& options, StructureHash* hash) {
  [[maybe_unused]] const auto& [model, dtype, stored_as, backend, device, cuda_graphs, tensor_parallel, threads, context_length, rope_scaling,
                                kv_cache_bytes, kv_offload_bytes, prefix_cache_bytes, prefix_cache_dir, prefix_cache_dir_bytes,
                                max_sequences, max_queue, prefill_chunk, chat_template_file, kv_cache, speculative, draft_model,
                                draft_weights, gates, channel_worth, allowed_policies, allowed_speculation] = options;
  hash->add(model_options(options).llama);
  hash->add(tensor_parallel);
  for (const auto* files : {&gates, &channel_worth}) {
    for (const auto& [name, file] : *files) {
      hash->add(name);
      hash->add_file(file);
    }
  }
}

}  // namespace

std::string prefix_identity(const Weights& weights, const EngineOptions& options) {
  try {
    StructureHash program, chosen;
    program.add_file("/proc/self/exe");
    if (options.backend == "torch") program.add_file(torch_backend_path());
    add_options(options, &chosen);
    const nlohmann::ordered_json identity = {{"name", weights.config().name},
                                             {"model", model_fingerprint(weights)},
                                             {"program", program.digest()},
                                             {"options", chosen.digest()},
                                             {"cpu_level", kernels::name(kernels::cpu_level())}};
    return identity.dump();
  } catch (const std::runtime_error& error) {
    throw CacheError(std::string("prefix_cache_dir: cannot hash a file that states depend on: ") + error.what());
  }
}

}  // namespace smartkv

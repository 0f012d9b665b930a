#include "engine/prefix_identity.h"

#include <tuple>

#include "engine/model/torch_backend.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/structure_hash.h"
#include "kernels/cpu_level.h"

namespace smartkv {
namespace {

// Adds the options that change bits to the hash. All options are named here, so that a new one does not compile until
// it is decided whether it changes bits.
void add_options(const EngineOptions& options, StructureHash* hash) {
  [[maybe_unused]] const auto& [model, kv_cache_bytes, kv_offload_bytes, prefix_cache_bytes, prefix_cache_dir,
                                prefix_cache_dir_bytes, retention_seconds, max_sequences, max_queue, prefill_chunk,
                                chat_template_file, kv_cache, speculative, draft_model, draft_weights, calibrates,
                                allowed_policies, allowed_speculation] = options;
  [[maybe_unused]] const auto& [path, dtype, stored_as, weights_lock, backend, device, cuda_graphs, tensor_parallel,
                                threads, context_length, rope_scaling, int4_floats, gates, channel_worth] = model;
  const auto& [scaling, factor] = rope_scaling;
  hash->add(std::tie(dtype, stored_as, backend, device, cuda_graphs, tensor_parallel, context_length, scaling, factor,
                     int4_floats));
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
    if (options.model.backend == Backend::kTorch) program.add_file(torch_backend_path());
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

// Sampling for requests that do not say: the option `sampling`, else what the model's files recommend.
#pragma once

#include "server/commands/options.h"

namespace smartkv {

// temperature, top_p, top_k, min_p and repetition_penalty, those that are given: by options.sampling; if that is null, by
// generation_config.json of a Hugging Face folder, or the keys general.sampling.* of a GGUF file. Throws ConfigError.
nlohmann::ordered_json sampling_defaults(const ServerOptions& options);

}  // namespace smartkv

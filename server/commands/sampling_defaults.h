// Default sampling of requests: the option `sampling`, or the recommendation in the model's files.
#pragma once

#include "server/commands/options.h"

namespace smartkv {

// Returns the given ones among temperature, top_p, top_k, min_p and repetition_penalty. They come from
// options.sampling. If that is null, they come from generation_config.json of a Hugging Face folder, or from the keys
// general.sampling.* of a GGUF file. Throws ConfigError.
nlohmann::ordered_json sampling_defaults(const ServerOptions& options);

}  // namespace smartkv

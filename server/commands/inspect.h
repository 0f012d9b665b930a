// smartkv inspect: shows the contents of a model file.
#pragma once

#include <filesystem>
#include <iosfwd>

namespace smartkv {

// Prints format, configuration, tensors by type, cache size and tokenizer of a model. Returns the exit code; throws
// ModelError or TokenizerError.
int inspect(const std::filesystem::path& model, bool json, std::ostream& out);

}  // namespace smartkv

// Names of models on a hub that speaks the protocol of the Hugging Face Hub.
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

namespace smartkv {

// A model on a hub, as a user writes it:
//   ORG/NAME                      a repository
//   ORG/NAME:Q4_K_M               one of its GGUF quantizations
//   hf://ORG/NAME/file.gguf       one of its files
// Each may have @REVISION (a branch, tag or commit) behind NAME.
struct ModelReference {
  std::string repo;  // "ORG/NAME"
  std::string revision = "main";
  std::string quantization = {};  // as written; empty if none is named
  std::string file = {};          // path in the repository; empty if none is named

  std::string text() const;  // as a user would write it
};

// Returns the reference that `text` is, or nothing if it has another form. Throws HubError if it begins with hf:// and
// is no reference.
std::optional<ModelReference> parse_model_reference(std::string_view text);

// As parse_model_reference(), but a path that exists is none.
std::optional<ModelReference> model_reference(const std::filesystem::path& model);

}  // namespace smartkv

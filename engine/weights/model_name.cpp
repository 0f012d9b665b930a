#include "engine/weights/model_name.h"

#include <algorithm>
#include <fstream>
#include <regex>

#include <nlohmann/json.hpp>

#include "engine/weights/gguf.h"

namespace smartkv {
namespace {

namespace fs = std::filesystem;

// Returns "ORG/NAME", or "NAME", for a snapshot folder of the Hugging Face cache (models--ORG--NAME/snapshots/COMMIT).
// Returns "" for other folders.
std::string hub_repository(const fs::path& snapshot) {
  constexpr std::string_view kModels = "models--", kSeparator = "--";
  if (snapshot.parent_path().filename() != "snapshots") return "";
  std::string name = snapshot.parent_path().parent_path().filename().string();
  if (!name.starts_with(kModels)) return "";
  name.erase(0, kModels.size());
  const size_t at = name.find(kSeparator);
  return at == name.npos ? name : name.substr(0, at).append("/").append(name, at + kSeparator.size());
}

// Returns the name without the part that the pattern matches, or the whole name if nothing would be left. Ignores case.
std::string without(const std::string& name, const char* pattern) {
  const std::string rest = std::regex_replace(name, std::regex(pattern, std::regex::icase), "");
  return rest.empty() ? name : rest;
}

// Returns whether a name is generic: chosen by a program, or by a person who did not mean to name the model.
bool says_nothing(const std::string& name) {
  static const std::regex kGeneric(
      R"((ggml|gguf)?[-_.]?(models?|weights|default|current|latest|main|checkpoint[-_.]?\d*)?)", std::regex::icase);
  return std::regex_match(name, kGeneric);
}

bool is_utf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::type_error&) {
    return false;
  }
}

// Returns a title as a name. Returns "" if the title cannot be a name.
std::string name_of_title(const std::string& title) {
  constexpr size_t kMost = 96;  // bytes
  static const std::regex kBlanks(" +"), kEnds("^-|-$");
  const bool is_line = std::none_of(title.begin(), title.end(), [](unsigned char c) { return c < 0x20 || c == 0x7f; });
  if (!is_line || title.size() > kMost || !is_utf8(title)) return "";
  return std::regex_replace(std::regex_replace(title, kBlanks, "-"), kEnds, "");
}

}  // namespace

std::string title_of_config(const nlohmann::json& config) {
  const auto found = config.find("_name_or_path");
  if (found == config.end() || !found->is_string()) return "";
  return fs::path(found->get<std::string>()).filename().string();
}

std::string model_title(const fs::path& model) {
  if (fs::is_directory(model)) {
    std::ifstream file(model / "config.json");
    return title_of_config(nlohmann::json::parse(file, nullptr, false));
  }
  const GgufFile file = GgufFile::open(model);
  const std::string* title = file.get_string("general.name");
  return title == nullptr ? "" : *title;
}

std::vector<std::string> model_names(const fs::path& model, const std::string& title) {
  fs::path path = fs::absolute(model).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "folder/"
  std::vector<std::string> names;
  const bool folder = fs::is_directory(path);
  const std::string repository = hub_repository(folder ? path : path.parent_path());
  if (!folder) {
    const std::string stem = without(without(path.filename().string(), R"(\.gguf$)"), R"(-\d{5}-of-\d{5}$)");
    // Quantizations as llama.cpp and publishers of files write them: Q4_K_M, IQ4_XS, i1-Q4_K_M, UD-Q4_K_XL, TQ1_0,
    // MXFP4_MOE, BF16.
    const std::string base = without(
        stem,
        R"([-._]((UD|i1)-)?(I?Q\d(_\d|_[KN](_?[A-Z]+)?|_?[A-Z]+)*|TQ\d_\d|(NV|MX)?FP(4|8|16|32)(_MOE)?|B?F(16|32)|INT\d)$)");
    names = {base, stem};
  } else if (repository.empty()) {
    names = {path.filename().string()};
  } else {
    names = {repository.substr(repository.find('/') + 1)};
  }
  if (!repository.empty()) names.push_back(repository);
  if (const std::string name = name_of_title(title); !name.empty()) {
    names.insert(says_nothing(names.front()) ? names.begin() : names.end(), name);
  }
  for (auto name = names.begin(); name != names.end();) {  // Removes duplicates.
    name = std::find(names.begin(), name, *name) == name ? name + 1 : names.erase(name);
  }
  return names;
}

}  // namespace smartkv

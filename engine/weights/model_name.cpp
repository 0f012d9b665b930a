#include "engine/weights/model_name.h"

#include <algorithm>
#include <regex>

namespace smartkv {
namespace {

namespace fs = std::filesystem;

// "ORG/NAME", or "NAME", of a folder COMMIT in a folder snapshots of the Hugging Face cache; "": it is none.
std::string hub_repository(const fs::path& snapshot) {
  constexpr std::string_view kModels = "models--", kSeparator = "--";
  if (snapshot.parent_path().filename() != "snapshots") return "";
  std::string name = snapshot.parent_path().parent_path().filename().string();
  if (!name.starts_with(kModels)) return "";
  name.erase(0, kModels.size());
  if (const size_t at = name.find(kSeparator); at != name.npos) name.replace(at, kSeparator.size(), "/");
  return name;
}

std::string without(const std::string& name, const char* pattern) {
  const std::string rest = std::regex_replace(name, std::regex(pattern, std::regex::icase), "");
  return rest.empty() ? name : rest;
}

}  // namespace

std::vector<std::string> model_names(const fs::path& model) {
  fs::path path = fs::absolute(model).lexically_normal();
  if (path.filename().empty()) path = path.parent_path();  // "folder/"
  std::vector<std::string> names;
  const bool folder = fs::is_directory(path);
  const std::string repository = hub_repository(folder ? path : path.parent_path());
  if (!folder) {
    const std::string stem = without(without(path.filename().string(), R"(\.gguf$)"), R"(-\d{5}-of-\d{5}$)");
    // As llama.cpp and those who publish files write them: Q4_K_M, IQ4_XS, i1-Q4_K_M, UD-Q4_K_XL, TQ1_0, MXFP4_MOE, BF16.
    const std::string base = without(stem, R"([-._]((UD|i1)-)?(I?Q\d(_\d|_[KN](_?[A-Z]+)?|_?[A-Z]+)*|TQ\d_\d|(NV|MX)?FP(4|8|16|32)(_MOE)?|B?F(16|32)|INT\d)$)");
    names = {base, stem};
  } else if (repository.empty()) {
    names = {path.filename().string()};
  } else {
    names = {repository.substr(repository.find('/') + 1)};
  }
  if (!repository.empty()) names.push_back(repository);
  for (auto name = names.begin(); name != names.end();) {  // each once
    name = std::find(names.begin(), name, *name) == name ? name + 1 : names.erase(name);
  }
  return names;
}

}  // namespace smartkv

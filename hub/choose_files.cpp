#include "hub/choose_files.h"

#include <algorithm>
#include <iomanip>
#include <map>
#include <regex>
#include <sstream>

#include "hub/hub_error.h"
#include "hub/letters.h"

namespace smartkv {
namespace {

constexpr std::string_view kUsual = "Q4_K_M";

std::string_view base_of(std::string_view path) { return path.substr(path.rfind('/') + 1); }

// Returns the path without the number of a shard: "a-00001-of-00002.gguf" and "a-00002-of-00002.gguf" have the same.
std::string group_of(const std::string& path) {
  static const std::regex shard("-[0-9]{5}-of-([0-9]{5})\\.(gguf|safetensors)$");
  return std::regex_replace(path, shard, "-of-$1.$2");
}

bool is_gguf(const HubFile& file) {
  return file.path.ends_with(".gguf") && upper(base_of(file.path)).find("MMPROJ") == std::string::npos;
}

struct Group {
  std::vector<HubFile> files;  // shards in order
  std::string quantization;
  int64_t bytes = 0;
};

std::string gibibytes(int64_t bytes) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(1) << static_cast<double>(bytes) / (1 << 30) << " GiB";
  return text.str();
}

std::string listed(const std::vector<Group>& groups) {
  std::string text;
  for (const Group& group : groups) {
    const std::string& name = group.quantization.empty() ? group.files.front().path : group.quantization;
    text += (text.empty() ? "" : ", ") + name;
  }
  return text.empty() ? "none" : text;
}

// Files of a Hugging Face folder that the program reads. Other formats of weights in the same repository are not.
bool is_of_folder(const HubFile& file) {
  const std::string_view name = file.path;
  if (name.find('/') != std::string_view::npos) return false;
  return name.ends_with(".safetensors") || name.ends_with(".json") || name.ends_with(".jinja") ||
         name == "tokenizer.model" || name == "vocab.txt" || name == "merges.txt";
}

ChosenFiles choose_folder(const ModelReference& reference, const std::vector<HubFile>& files) {
  ChosenFiles chosen{.folder = true};
  bool configured = false, weighted = false;
  for (const HubFile& file : files) {
    if (!is_of_folder(file)) continue;
    configured = configured || file.path == "config.json";
    weighted = weighted || file.path.ends_with(".safetensors");
    chosen.files.push_back(file);
  }
  if (configured && weighted) return chosen;
  throw HubError(reference.text() + ": expected GGUF files, or safetensors with config.json, found neither");
}

ChosenFiles choose_quantization(const ModelReference& reference, const std::vector<Group>& groups,
                                int64_t memory_bytes) {
  if (!reference.quantization.empty()) {
    const std::string wanted = upper(reference.quantization);
    for (const Group& group : groups) {
      if (group.quantization == wanted) return {.files = group.files};
    }
    throw HubError(reference.text() + ": expected one of its quantizations (" + listed(groups) + "), found " +
                   reference.quantization);
  }
  if (groups.size() == 1) return {.files = groups.front().files};
  const int64_t room = memory_bytes / 3 * 2;
  const auto usual = std::ranges::find(groups, kUsual, &Group::quantization);
  const Group* best = nullptr;
  std::string why;
  if (usual != groups.end() && usual->bytes <= room) {
    best = &*usual;
    why = "the usual one";
  } else {
    for (const Group& group : groups) {
      const bool below = usual == groups.end() || group.bytes <= usual->bytes;
      if (below && group.bytes <= room && (best == nullptr || group.bytes > best->bytes)) best = &group;
    }
    why = "the largest that fits";
    if (best == nullptr) {
      best = &*std::ranges::min_element(groups, {}, &Group::bytes);
      why = "the smallest, though it may not fit";
    }
  }
  return {.files = best->files,
          .why = (best->quantization.empty() ? best->files.front().path : best->quantization) + " of " +
                 listed(groups) + ": " + why + " (" + gibibytes(best->bytes) + ", with " + gibibytes(memory_bytes) +
                 " of memory)"};
}

}  // namespace

std::string quantization_of(std::string_view file) {
  static const std::regex pattern("(^|[-._])((I?Q[0-9]+|T?Q[0-9]+|BF16|F16|F32|FP16|FP32|MXFP4|NVFP4)(_[A-Z0-9]+)*)$");
  std::string name = upper(group_of(std::string(base_of(file))));
  if (name.ends_with(".GGUF")) name.resize(name.size() - 5);
  if (const auto of = name.rfind("-OF-"); of != std::string::npos) name.resize(of);
  std::smatch match;
  return std::regex_search(name, match, pattern) ? match[2].str() : "";
}

ChosenFiles choose_files(const ModelReference& reference, const std::vector<HubFile>& files, int64_t memory_bytes) {
  std::map<std::string, Group> by_name;
  for (const HubFile& file : files) {
    if (!is_gguf(file)) continue;
    Group& group = by_name[group_of(file.path)];
    group.files.push_back(file);
    group.bytes += std::max<int64_t>(0, file.bytes);
    group.quantization = quantization_of(file.path);
  }
  std::vector<Group> groups;
  for (auto& [name, group] : by_name) {
    std::ranges::sort(group.files, {}, &HubFile::path);
    groups.push_back(std::move(group));
  }
  std::ranges::stable_sort(groups, {}, &Group::bytes);
  if (!reference.file.empty()) {
    for (const Group& group : groups) {
      const bool here =
          std::ranges::any_of(group.files, [&](const HubFile& file) { return file.path == reference.file; });
      if (here) return {.files = group.files};
    }
    throw HubError(reference.text() + ": expected one of its GGUF files (" + listed(groups) + "), found " +
                   reference.file);
  }
  if (!groups.empty()) return choose_quantization(reference, groups, memory_bytes);
  if (!reference.quantization.empty()) throw HubError(reference.text() + ": expected GGUF files, found none");
  return choose_folder(reference, files);
}

}  // namespace smartkv

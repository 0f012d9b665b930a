#include "engine/control_groups.h"

#include <algorithm>
#include <charconv>
#include <fstream>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <vector>

namespace smartkv {
namespace {

namespace fs = std::filesystem;

constexpr const char* kVersion2 = "";  // stands for the controllers of version 2, which share one hierarchy

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream in(text);
  for (std::string part; std::getline(in, part, separator);) parts.push_back(part);
  return parts;
}

// Returns the words of each line of a file. Empty if it cannot be read.
std::vector<std::vector<std::string>> words_of(const fs::path& path) {
  std::vector<std::vector<std::string>> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(split(line, ' '));
  return lines;
}

// Returns the number that a word is, or nullopt for "max" and anything else.
std::optional<int64_t> number(const std::string& word) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc() && end == word.data() + word.size() ? std::optional(value) : std::nullopt;
}

// Returns the number that is word `index` of a file's first line.
std::optional<int64_t> number_in(const fs::path& path, size_t index = 0) {
  const auto lines = words_of(path);
  return lines.empty() || lines[0].size() <= index ? std::nullopt : number(lines[0][index]);
}

// Returns the value in the line "key value" of a file.
std::optional<int64_t> number_after(const fs::path& path, const std::string& key) {
  for (const auto& words : words_of(path)) {
    if (words.size() == 2 && words[0] == key) return number(words[1]);
  }
  return std::nullopt;
}

// Undoes the escapes of mountinfo, which writes a blank, tab, line break or backslash as a backslash and three octal
// digits.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    if (text[i] == '\\' && i + 3 < text.size() &&
        std::from_chars(text.data() + i + 1, text.data() + i + 4, code, 8).ptr == text.data() + i + 4) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

// Returns the path of this process's group in each hierarchy, by controller.
std::map<std::string, fs::path> own_groups(const fs::path& root) {
  std::map<std::string, fs::path> groups;
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {  // ID:CONTROLLERS:PATH
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == line.npos || second == line.npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1), path = line.substr(second + 1);
    if (controllers.empty()) groups[kVersion2] = path;
    for (const std::string& controller : split(controllers, ',')) groups[controller] = path;
  }
  return groups;
}

// Returns the folders of `group` and of its ancestors that are visible in a hierarchy mounted at `mount`. `shown` is
// the group that the mount's root stands for. If `group` is not below it, as in another namespace, returns only the
// mount's root, which then shows the limits that apply.
std::vector<fs::path> folders(const fs::path& mount, const fs::path& shown, const fs::path& group) {
  std::vector<fs::path> found = {mount};
  const fs::path below = group.lexically_relative(shown);
  if (below.empty() || std::find(below.begin(), below.end(), "..") != below.end()) return found;
  for (const fs::path& part : below) {
    if (part != ".") found.push_back(found.back() / part);
  }
  return found;
}

void take_memory(std::optional<int64_t> limit, std::optional<int64_t> used, std::optional<int64_t> reclaimable,
                 ControlGroupLimits* limits) {
  constexpr int64_t kNone = int64_t{1} << 62;  // version 1 writes a huge number instead of "max"
  if (limit && used && *limit < kNone)
    limits->free_bytes = std::min(limits->free_bytes, *limit - *used + reclaimable.value_or(0));
}

void take_cpus(std::optional<int64_t> quota, std::optional<int64_t> period, ControlGroupLimits* limits) {
  if (quota && period && *quota > 0 && *period > 0) {
    limits->cpus = std::min(limits->cpus, static_cast<double>(*quota) / static_cast<double>(*period));
  }
}

void read_version_2(const fs::path& group, ControlGroupLimits* limits) {
  // Above memory.high the kernel slows a process down to a standstill, so it is a limit, too.
  for (const char* limit : {"memory.max", "memory.high"}) {
    take_memory(number_in(group / limit), number_in(group / "memory.current"),
                number_after(group / "memory.stat", "inactive_file"), limits);
  }
  take_cpus(number_in(group / "cpu.max"), number_in(group / "cpu.max", 1), limits);
}

void read_memory_version_1(const fs::path& group, ControlGroupLimits* limits) {
  const auto used = number_in(group / "memory.usage_in_bytes"),
             reclaimable = number_after(group / "memory.stat", "total_inactive_file");
  take_memory(number_in(group / "memory.limit_in_bytes"), used, reclaimable, limits);
  // The hierarchical limit includes ancestors that are not mounted here.
  take_memory(number_after(group / "memory.stat", "hierarchical_memory_limit"), used, reclaimable, limits);
}

}  // namespace

ControlGroupLimits control_group_limits(const fs::path& root) {
  ControlGroupLimits limits;
  const std::map<std::string, fs::path> groups = own_groups(root);
  for (const auto& words : words_of(root / "proc/self/mountinfo")) {
    // ID PARENT DEVICE ROOT MOUNT OPTIONS [FIELDS...] - TYPE SOURCE SUPER_OPTIONS
    const auto dash = std::find(words.begin(), words.end(), "-");
    if (words.size() < 7 || words.end() - dash < 4) continue;
    const std::string& type = dash[1];
    if (type != "cgroup" && type != "cgroup2") continue;
    const fs::path shown = unescaped(words[3]), mount = root / fs::path(unescaped(words[4])).relative_path();
    const std::vector<std::string> options = split(dash[3], ',');
    for (const auto& [controller, group] : groups) {
      const bool version_2 = controller == kVersion2;
      if (version_2 ? type != "cgroup2"
                    : type != "cgroup" || std::find(options.begin(), options.end(), controller) == options.end())
        continue;
      for (const fs::path& folder : folders(mount, shown, group)) {
        if (version_2) read_version_2(folder, &limits);
        if (controller == "memory") read_memory_version_1(folder, &limits);
        if (controller == "cpu")
          take_cpus(number_in(folder / "cpu.cfs_quota_us"), number_in(folder / "cpu.cfs_period_us"), &limits);
      }
    }
  }
  return limits;
}

}  // namespace smartkv

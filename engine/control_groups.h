// Limits of the control groups (cgroups, versions 1 and 2) that this process runs in. Containers and systemd units set
// them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace smartkv {

// The defaults mean that no limit is set.
struct ControlGroupLimits {
  // Bytes that the process may still allocate. May be negative.
  int64_t free_bytes = std::numeric_limits<int64_t>::max();
  double cpus = std::numeric_limits<double>::infinity();  // seconds of CPU time per second
};

// Returns the tightest limits of the process's own groups and of all their ancestors that are mounted.
//  - Groups are found through /proc/self/cgroup and /proc/self/mountinfo, wherever their hierarchies are mounted.
//  - Page cache that the kernel would reclaim first (inactive_file) counts as free.
//  - A file that is missing or holds no number sets no limit.
// `root` is the folder that stands for "/"; tests set it.
ControlGroupLimits control_group_limits(const std::filesystem::path& root = "/");

}  // namespace smartkv

// Limits of the control groups (cgroups, versions 1 and 2) that this process runs in: containers and systemd units set them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>

namespace smartkv {

struct ControlGroupLimits {
  int64_t free_bytes = std::numeric_limits<int64_t>::max();  // that the process may still allocate; may be negative
  double cpus = std::numeric_limits<double>::infinity();     // CPU time per second
};

// Returns the tightest limits of the process's own groups and of all their ancestors that are mounted. A group is found by
// /proc/self/cgroup and /proc/self/mountinfo, wherever its hierarchy is mounted. Page cache that the kernel would reclaim
// first (inactive_file) counts as free. Files that are missing or hold no number set no limit. `root`: the folder that stands
// for "/", for tests.
ControlGroupLimits control_group_limits(const std::filesystem::path& root = "/");

}  // namespace smartkv

#include "engine/control_groups.h"

#include <cmath>
#include <filesystem>
#include <fstream>
#include <string>

#include <gtest/gtest.h>

namespace smartkv {
namespace {

constexpr int64_t kMiB = 1 << 20;

// A folder that stands for "/". Tests write files there as the kernel shows them in /proc and in hierarchies of control
// groups.
class ControlGroups : public testing::Test {
 protected:
  ControlGroups()
      : root_(std::filesystem::path(testing::TempDir()) /
              ("control_groups_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()))) {
    std::filesystem::remove_all(root_);
  }
  ~ControlGroups() override { std::filesystem::remove_all(root_); }

  void write(const std::string& file, const std::string& text) {
    std::filesystem::create_directories((root_ / file).parent_path());
    std::ofstream(root_ / file) << text;
  }
  void version_2(const std::string& own, const std::string& mount_root = "/",
                 const std::string& mount = "/sys/fs/cgroup") {
    write("proc/self/cgroup", "0::" + own + "\n");
    write("proc/self/mountinfo",
          "20 1 8:1 / / rw,relatime - ext4 /dev/sda rw\n"
          "33 24 0:30 " +
              mount_root + " " + mount + " rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n");
  }
  void memory_2(const std::string& group, const std::string& max, int64_t current, int64_t inactive = 0) {
    write(group + "/memory.max", max + "\n");
    write(group + "/memory.current", std::to_string(current) + "\n");
    write(group + "/memory.stat", "anon 1\nactive_file 77\ninactive_file " + std::to_string(inactive) + "\n");
  }
  void version_1(const std::string& own, const std::string& mount_root) {
    write("proc/self/cgroup", "12:pids:" + own + "\n8:memory:" + own + "\n4:cpu,cpuacct:" + own +
                                  "\n1:name=systemd:" + own + "\n0::" + own + "\n");
    write("proc/self/mountinfo", "40 30 0:35 " + mount_root +
                                     " /sys/fs/cgroup/cpu,cpuacct ro - cgroup cgroup rw,cpu,cpuacct\n"
                                     "41 30 0:36 " +
                                     mount_root +
                                     " /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n"
                                     "42 30 0:37 " +
                                     mount_root + " /sys/fs/cgroup/pids ro - cgroup cgroup rw,pids\n");
  }
  void memory_1(const std::string& group, int64_t limit, int64_t used, const std::string& stat = "") {
    write("sys/fs/cgroup/memory" + group + "/memory.limit_in_bytes", std::to_string(limit) + "\n");
    write("sys/fs/cgroup/memory" + group + "/memory.usage_in_bytes", std::to_string(used) + "\n");
    write("sys/fs/cgroup/memory" + group + "/memory.stat", stat);
  }
  ControlGroupLimits limits() const { return control_group_limits(root_); }
  int64_t free_mib() const { return limits().free_bytes / kMiB; }

  const std::filesystem::path root_;
};

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

TEST_F(ControlGroups, NoneLimitNothing) {
  EXPECT_EQ(limits().free_bytes, kUnlimited);
  EXPECT_TRUE(std::isinf(limits().cpus));
  version_2("/a");  // the group has no folder
  EXPECT_EQ(limits().free_bytes, kUnlimited);
  memory_2("sys/fs/cgroup/a", "max", 5);
  write("sys/fs/cgroup/a/cpu.max", "max 100000\n");
  EXPECT_EQ(limits().free_bytes, kUnlimited);
  EXPECT_TRUE(std::isinf(limits().cpus));
}

TEST_F(ControlGroups, Version2AtTheRootOfItsNamespace) {
  version_2("/");
  memory_2("sys/fs/cgroup", std::to_string(600 * kMiB), 150 * kMiB, 50 * kMiB);
  write("sys/fs/cgroup/cpu.max", "150000 100000\n");
  EXPECT_EQ(free_mib(), 500);
  EXPECT_DOUBLE_EQ(limits().cpus, 1.5);
}

TEST_F(ControlGroups, Version2AwayFromTheRootWithAllAncestors) {
  version_2("/system.slice/smartkv.service");
  memory_2("sys/fs/cgroup/system.slice/smartkv.service", std::to_string(900 * kMiB), 100 * kMiB);
  EXPECT_EQ(free_mib(), 800);
  memory_2("sys/fs/cgroup/system.slice", std::to_string(1000 * kMiB), 700 * kMiB);  // the parent has less left
  EXPECT_EQ(free_mib(), 300);
  write("sys/fs/cgroup/system.slice/cpu.max", "300000 100000");
  write("sys/fs/cgroup/system.slice/smartkv.service/cpu.max", "800000 100000");
  EXPECT_DOUBLE_EQ(limits().cpus, 3);
  memory_2("sys/fs/cgroup/other.slice", "1", 1);  // not an ancestor
  EXPECT_EQ(free_mib(), 300);
}

TEST_F(ControlGroups, MemoryHighCountsAndMayBeExceeded) {
  version_2("/a");
  memory_2("sys/fs/cgroup/a", std::to_string(900 * kMiB), 100 * kMiB);
  write("sys/fs/cgroup/a/memory.high", std::to_string(60 * kMiB));
  EXPECT_EQ(free_mib(), -40);
}

// A container in the host's cgroup namespace: only its own part of the hierarchy is mounted, but its path is the
// host's.
TEST_F(ControlGroups, AMountMayShowAPart) {
  version_2("/docker/abc/inner", "/docker/abc", "/run/c\\040g");
  memory_2("run/c g", std::to_string(500 * kMiB), 0);
  EXPECT_EQ(free_mib(), 500);
  memory_2("run/c g/inner", std::to_string(300 * kMiB), 0);
  EXPECT_EQ(free_mib(), 300);
  memory_2("run/c g/docker/abc/inner", "0", 0);  // not a group of this process
  EXPECT_EQ(free_mib(), 300);
}

TEST_F(ControlGroups, AGroupOutsideOfTheMountLeavesItsRoot) {
  memory_2("sys/fs/cgroup", std::to_string(200 * kMiB), 0);
  for (const char* own : {"/../elsewhere", "/docker/abcd", "/other"}) {
    version_2(own, "/docker/abc");
    EXPECT_EQ(free_mib(), 200) << own;
  }
}

TEST_F(ControlGroups, Version1) {
  version_1("/docker/abc", "/docker/abc");  // as Docker mounts it
  memory_1("", 600 * kMiB, 200 * kMiB,
           "cache 1\ninactive_file 9\ntotal_inactive_file " + std::to_string(100 * kMiB) + "\n");
  EXPECT_EQ(free_mib(), 500);
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
  EXPECT_TRUE(std::isinf(limits().cpus));
  write("sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "250000\n");
  EXPECT_DOUBLE_EQ(limits().cpus, 2.5);
}

TEST_F(ControlGroups, Version1WithAncestorsSeenAndUnseen) {
  version_1("/a/b", "/");
  memory_1("/a/b", 9223372036854771712, 10 * kMiB);  // how version 1 writes that there is no limit
  EXPECT_GT(free_mib(), int64_t{1} << 40);
  memory_1("/a", 400 * kMiB, 100 * kMiB);
  EXPECT_EQ(free_mib(), 300);
  memory_1("/a/b", 9223372036854771712, 10 * kMiB, "hierarchical_memory_limit " + std::to_string(50 * kMiB) + "\n");
  EXPECT_EQ(free_mib(), 40);
}

// Debian before version 11: memory is in a hierarchy of version 1, and one of version 2 exists without it.
TEST_F(ControlGroups, BothVersionsAtOnce) {
  version_1("/user.slice", "/");
  write("proc/self/mountinfo",
        "41 30 0:36 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
        "43 30 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  memory_1("/user.slice", 70 * kMiB, 0);
  EXPECT_EQ(free_mib(), 70);
  memory_2("sys/fs/cgroup/unified/user.slice", std::to_string(60 * kMiB), 0);
  EXPECT_EQ(free_mib(), 60);
}

TEST_F(ControlGroups, BrokenFilesLimitNothing) {
  version_2("/a");
  for (const char* text : {"", "x", "12x", "99999999999999999999", "-"}) {
    memory_2("sys/fs/cgroup/a", text, 5);
    write("sys/fs/cgroup/a/cpu.max", text);
    EXPECT_EQ(limits().free_bytes, kUnlimited) << text;
    EXPECT_TRUE(std::isinf(limits().cpus)) << text;
  }
  write("sys/fs/cgroup/a/cpu.max", "100000 0");
  EXPECT_TRUE(std::isinf(limits().cpus));
  memory_2("sys/fs/cgroup/a", "5", 0);
  for (const char* text : {"", "\n\n", "0:", "0::", "1 2 3 -\n", "33 24 0:30 / /sys/fs/cgroup rw - cgroup2"}) {
    version_2("/a");
    write("proc/self/mountinfo", text);
    EXPECT_EQ(limits().free_bytes, kUnlimited) << text;
  }
}

}  // namespace
}  // namespace smartkv

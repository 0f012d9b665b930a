// The processes of tensor-parallel ranks 1 and up. Each runs this program again. The object starts them, watches them,
// and ends them in its destructor.
#pragma once

#include <sys/types.h>

#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace smartkv {

// First argument of a rank's process. Rank, size, port and device follow it.
inline constexpr const char* kRankCommand = "tensor-parallel-rank";

class RankProcesses {
 public:
  // Starts one process for each element of `arguments`. If one of them ends by itself, the others are killed, and then
  // `lost` is called once, on a thread of this object, with a message such as "rank 1 (process 4711) was killed by
  // signal 9". All processes also end when this process does. Throws RankError.
  RankProcesses(const std::string& program, const std::vector<std::vector<std::string>>& arguments,
                std::function<void(const std::string&)> lost);
  // Ends the processes that still run: it asks them to exit and kills them after 2 s.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void kill();  // kills all processes that run; thread-safe

 private:
  struct Process {
    pid_t pid = -1;
    int handle = -1;  // a pidfd, readable once the process has ended
    int input = -1;   // our end of its standard input; the process exits when this closes
  };

  Process start(const std::string& program, const std::vector<std::string>& arguments);
  void watch();
  void end();

  std::vector<Process> processes_;  // ranks 1 and up, in order
  std::function<void(const std::string&)> lost_;
  int ending_ = -1;  // an eventfd, readable once the destructor runs
  std::thread watcher_;
};

// Called in a rank's process. Makes the process exit as soon as rank 0's process has ended, which closes its standard
// input. Ignores SIGINT, SIGTERM and SIGHUP, which a terminal or a service manager sends to all processes of a group;
// rank 0 decides.
void follow_parent();

}  // namespace smartkv

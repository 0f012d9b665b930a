// The processes of ranks 1 and on: this program once more, each started, watched, and ended with the object.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <vector>

namespace smartkv {

// How a rank's process is told what it is, by its first argument: what follows are rank, size, port and device.
inline constexpr const char* kRankCommand = "tensor-parallel-rank";

class RankProcesses {
 public:
  // lost: told once, by a thread of its own, which rank ended by itself and how: "rank 1 (process 4711) was killed by signal 9". By
  // then all others are killed, too. Each process ends, too, when this one does. Throws RankError.
  RankProcesses(const std::string& program, const std::vector<std::vector<std::string>>& arguments,
                std::function<void(const std::string&)> lost);
  // Ends those that run.
  ~RankProcesses();
  RankProcesses(const RankProcesses&) = delete;
  RankProcesses& operator=(const RankProcesses&) = delete;

  void kill();  // all that run; thread-safe

 private:
  struct Process {
    pid_t pid = -1;
    int handle = -1;  // a pidfd: readable once it has ended
    int input = -1;   // its standard input, on which it waits for our end
  };

  Process start(const std::string& program, const std::vector<std::string>& arguments);
  void watch();
  void end();

  std::vector<Process> processes_;  // of ranks 1 and on
  std::function<void(const std::string&)> lost_;
  int ending_ = -1;                 // an eventfd: readable once this object goes
  std::thread watcher_;
};

// In a rank's process: ends it at once when rank 0's has ended, for which its standard input is open. Signals that end a server do not
// end it: they are sent to all processes of a terminal or a service.
void follow_parent();

}  // namespace smartkv

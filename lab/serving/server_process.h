// A server as a child process. The constructor waits until it listens; the destructor stops it.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace smartkv {

class ServerProcess {
 public:
  // Runs `command` (the program's path, then its arguments) and waits for the line "... at URL/v1" on its stdout, which
  // `smartkv serve` prints. The server shares this process's stderr. It does not get the variable SMARTKV_API_KEY.
  // Throws std::runtime_error if the program cannot be run, ends first, or does not print the line within `timeout`.
  explicit ServerProcess(const std::vector<std::string>& command,
                         std::chrono::seconds timeout = std::chrono::seconds(300));
  // Sends SIGTERM, and SIGKILL if the server has not ended after 10 s.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& url() const { return url_; }  // "http://127.0.0.1:40001"
  pid_t pid() const { return pid_; }

 private:
  void await_address(std::chrono::seconds timeout);
  void stop();

  pid_t pid_ = -1;
  int stdout_ = -1;
  std::string url_;
};

// Returns the path of the running program.
std::string own_binary();

}  // namespace smartkv

// A server as a child process: started, awaited until it listens, stopped with the object.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

namespace smartkv {

class ServerProcess {
 public:
  // Runs `command` (the program's path, then its arguments) and waits for the line "... at URL/v1" on its stdout, as
  // `smartkv serve` prints it. Its stderr is ours; SMARTKV_API_KEY is kept from it. Throws std::runtime_error if it
  // cannot be run, ends first, or says nothing for `timeout`.
  explicit ServerProcess(const std::vector<std::string>& command,
                         std::chrono::seconds timeout = std::chrono::seconds(300));
  // SIGTERM; SIGKILL where that does not end it within 10 s.
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

// The path of the program that runs.
std::string own_binary();

}  // namespace smartkv

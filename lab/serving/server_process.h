// A server as a child process, which the destructor stops.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <optional>
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
  // Runs `command`, a server that will listen at `url`, and returns at once. Its output is discarded.
  ServerProcess(const std::vector<std::string>& command, std::string url);
  // Sends SIGTERM, and SIGKILL if the server has not ended after 60 s.
  ~ServerProcess();
  ServerProcess(const ServerProcess&) = delete;
  ServerProcess& operator=(const ServerProcess&) = delete;

  const std::string& url() const { return url_; }  // "http://127.0.0.1:40001"
  pid_t pid() const { return pid_; }
  bool running() const;  // false once the program has ended
  void stop();           // as the destructor does
  // Returns the bytes that the server has written to files and pipes so far, or in its life if it was stopped. Returns
  // nullopt if the system does not count them.
  std::optional<int64_t> written_bytes() const;

 private:
  // Starts the program with these descriptors for its output.
  void spawn(const std::vector<std::string>& command, int out, int error);
  void await_address(std::chrono::seconds timeout);

  pid_t pid_ = -1;
  int stdout_ = -1;
  std::string url_;
  std::optional<int64_t> written_;  // after stop()
};

// Appends an option of serve, such as "max_sequences", and its value to a command line.
void add_option(std::string name, const std::string& value, std::vector<std::string>* command);

// Returns a port of the loopback interface that no server uses.
int free_port();

// Returns the path of the running program.
std::string own_binary();

}  // namespace smartkv

#include "lab/serving/server_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace smartkv {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStopTimeout = std::chrono::seconds(10);
constexpr auto kStopInterval = std::chrono::milliseconds(5);
constexpr int kCannotRun = 127;  // the exit code that shells use for it

std::string system_message(const std::string& what) { return what + ": " + std::strerror(errno); }

// Returns the address in "Serving NAME at http://127.0.0.1:8080/v1", or "" for any other line.
std::string address_in(std::string_view line) {
  constexpr std::string_view kMark = " at http://", kEnd = "/v1";
  const size_t mark = line.rfind(kMark);
  if (mark == line.npos || !line.ends_with(kEnd)) return "";
  line.remove_prefix(mark + std::strlen(" at "));
  line.remove_suffix(kEnd.size());
  return std::string(line);
}

}  // namespace

ServerProcess::ServerProcess(const std::vector<std::string>& command, std::chrono::seconds timeout) {
  std::vector<char*> arguments, environment;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("SMARTKV_API_KEY=")) environment.push_back(*variable);
  }
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error(system_message("pipe"));
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {                       // the child: only calls that are safe between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the server must not outlive this process
    if (::getppid() == parent && ::dup2(pipe[1], STDOUT_FILENO) >= 0) {
      ::execve(arguments[0], arguments.data(), environment.data());
    }
    ::_exit(kCannotRun);
  }
  ::close(pipe[1]);
  stdout_ = pipe[0];
  try {
    if (pid_ < 0) throw std::runtime_error(system_message("fork"));
    await_address(timeout);
  } catch (...) {
    stop();
    throw;
  }
}

ServerProcess::~ServerProcess() { stop(); }

void ServerProcess::await_address(std::chrono::seconds timeout) {
  const auto deadline = Clock::now() + timeout;
  std::string text;
  std::array<char, 4096> buffer;
  for (;;) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    pollfd waiting{.fd = stdout_, .events = POLLIN, .revents = 0};
    const int ready = left.count() > 0 ? ::poll(&waiting, 1, static_cast<int>(left.count())) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready == 0) {
      throw std::runtime_error("the server did not listen after " + std::to_string(timeout.count()) + " s");
    }
    const ssize_t n = ready < 0 ? -1 : ::read(stdout_, buffer.data(), buffer.size());
    if (n < 0) throw std::runtime_error(system_message("the server's output"));
    if (n == 0) throw std::runtime_error("the server ended before it listened; see its message above");
    text.append(buffer.data(), static_cast<size_t>(n));
    for (size_t end = text.find('\n'); end != text.npos; end = text.find('\n')) {
      url_ = address_in(std::string_view(text).substr(0, end));
      if (!url_.empty()) return;
      text.erase(0, end + 1);
    }
  }
}

void ServerProcess::stop() {
  if (stdout_ >= 0) ::close(std::exchange(stdout_, -1));
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  const auto deadline = Clock::now() + kStopTimeout;
  while (::waitpid(pid_, nullptr, WNOHANG) == 0) {
    if (Clock::now() > deadline) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(kStopInterval);
  }
  pid_ = -1;
}

std::string own_binary() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace smartkv

#include "lab/serving/server_process.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>

namespace smartkv {

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kStopTimeout = std::chrono::seconds(60);  // it may have queued files to write
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

// Returns "wchar" of /proc/PID/io. Bytes that are sent to sockets do not count.
std::optional<int64_t> written_by(pid_t pid) {
  std::ifstream counters("/proc/" + std::to_string(pid) + "/io");
  int64_t bytes = 0;
  for (std::string name; counters >> name >> bytes;) {
    if (name == "wchar:") return bytes;
  }
  return std::nullopt;
}

}  // namespace

ServerProcess::ServerProcess(const std::vector<std::string>& command, std::chrono::seconds timeout) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) throw std::runtime_error(system_message("pipe"));
  stdout_ = pipe[0];
  try {
    spawn(command, pipe[1], STDERR_FILENO);
    ::close(std::exchange(pipe[1], -1));  // so that reading ends with the server
    await_address(timeout);
  } catch (...) {
    if (pipe[1] >= 0) ::close(pipe[1]);
    stop();
    throw;
  }
}

ServerProcess::ServerProcess(const std::vector<std::string>& command, std::string url) : url_(std::move(url)) {
  const int nowhere = ::open("/dev/null", O_WRONLY | O_CLOEXEC);
  if (nowhere < 0) throw std::runtime_error(system_message("/dev/null"));
  try {
    spawn(command, nowhere, nowhere);
  } catch (...) {
    ::close(nowhere);
    throw;
  }
  ::close(nowhere);
}

void ServerProcess::spawn(const std::vector<std::string>& command, int out, int error) {
  std::vector<char*> arguments, environment;
  for (const std::string& argument : command) arguments.push_back(const_cast<char*>(argument.c_str()));
  for (char** variable = environ; *variable != nullptr; ++variable) {
    if (!std::string_view(*variable).starts_with("SMARTKV_API_KEY=")) environment.push_back(*variable);
  }
  arguments.push_back(nullptr);
  environment.push_back(nullptr);
  const pid_t parent = ::getpid();
  pid_ = ::fork();
  if (pid_ == 0) {                       // the child: only calls that are safe between fork and exec
    ::prctl(PR_SET_PDEATHSIG, SIGKILL);  // the server must not outlive this process
    if (::getppid() == parent && ::dup2(out, STDOUT_FILENO) >= 0 && ::dup2(error, STDERR_FILENO) >= 0) {
      ::execve(arguments[0], arguments.data(), environment.data());
    }
    ::_exit(kCannotRun);
  }
  if (pid_ < 0) throw std::runtime_error(system_message("fork"));
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

bool ServerProcess::running() const {
  siginfo_t ended{};
  return pid_ > 0 && ::waitid(P_PID, static_cast<id_t>(pid_), &ended, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         ended.si_pid == 0;
}

void ServerProcess::stop() {
  if (stdout_ >= 0) ::close(std::exchange(stdout_, -1));
  if (pid_ <= 0) return;
  ::kill(pid_, SIGTERM);
  const auto deadline = Clock::now() + kStopTimeout;
  while (running()) {
    if (Clock::now() > deadline) ::kill(pid_, SIGKILL);
    std::this_thread::sleep_for(kStopInterval);
  }
  written_ = written_by(pid_);  // the counters vanish when the process is waited for
  ::waitpid(pid_, nullptr, 0);
  pid_ = -1;
}

std::optional<int64_t> ServerProcess::written_bytes() const { return pid_ > 0 ? written_by(pid_) : written_; }

void add_option(std::string name, const std::string& value, std::vector<std::string>* command) {
  std::replace(name.begin(), name.end(), '_', '-');
  command->push_back("--" + name);
  command->push_back(value);
}

int free_port() {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  auto* any = reinterpret_cast<sockaddr*>(&address);
  const bool bound = socket >= 0 && ::bind(socket, any, size) == 0 && ::getsockname(socket, any, &size) == 0;
  const std::string problem = bound ? "" : system_message("a free port");
  if (socket >= 0) ::close(socket);
  if (!bound) throw std::runtime_error(problem);
  return ntohs(address.sin_port);
}

std::string own_binary() { return std::filesystem::read_symlink("/proc/self/exe"); }

}  // namespace smartkv

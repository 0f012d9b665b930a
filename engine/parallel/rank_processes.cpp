#include "engine/parallel/rank_processes.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "engine/parallel/rank_group.h"

namespace smartkv {
namespace {

constexpr auto kGrace = std::chrono::milliseconds(2000);

[[noreturn]] void fail(const std::string& what, int error) {
  throw RankError("tensor_parallel: " + what + ": " + std::strerror(error));
}

std::string how_it_ended(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return "ended with status " + std::to_string(info.si_status);
  return "was killed by signal " + std::to_string(info.si_status);
}

void close_if_open(int* file) {
  if (*file >= 0) ::close(std::exchange(*file, -1));
}

}  // namespace

RankProcesses::RankProcesses(const std::string& program, const std::vector<std::vector<std::string>>& arguments,
                             std::function<void(const std::string&)> lost)
    : lost_(std::move(lost)), ending_(::eventfd(0, EFD_CLOEXEC)) {
  try {
    if (ending_ < 0) fail("eventfd", errno);
    for (const auto& of_rank : arguments) processes_.push_back(start(program, of_rank));
    watcher_ = std::thread([this] { watch(); });
  } catch (...) {
    kill();
    end();
    throw;
  }
}

RankProcesses::~RankProcesses() {
  const uint64_t one = 1;
  static_cast<void>(!::write(ending_, &one, sizeof one));
  watcher_.join();
  end();
}

RankProcesses::Process RankProcesses::start(const std::string& program, const std::vector<std::string>& arguments) {
  std::vector<char*> argv = {const_cast<char*>(program.c_str()), const_cast<char*>(kRankCommand)};
  for (const std::string& argument : arguments) argv.push_back(const_cast<char*>(argument.c_str()));
  argv.push_back(nullptr);
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0) fail("pipe", errno);
  Process process;
  process.input = pipe[1];
  posix_spawn_file_actions_t files;
  ::posix_spawn_file_actions_init(&files);
  ::posix_spawn_file_actions_adddup2(&files, pipe[0], STDIN_FILENO);
  ::posix_spawn_file_actions_adddup2(&files, STDERR_FILENO, STDOUT_FILENO);  // our standard output belongs to the user
  const int error = ::posix_spawn(&process.pid, program.c_str(), &files, nullptr, argv.data(), environ);
  ::posix_spawn_file_actions_destroy(&files);
  ::close(pipe[0]);
  if (error != 0) {
    close_if_open(&process.input);
    fail("cannot run " + program, error);
  }
  process.handle = static_cast<int>(::syscall(SYS_pidfd_open, process.pid, 0));
  if (process.handle >= 0) return process;
  const int why = errno;
  ::kill(process.pid, SIGKILL);
  ::waitpid(process.pid, nullptr, 0);
  close_if_open(&process.input);
  fail("pidfd_open", why);
}

void RankProcesses::kill() {
  for (const Process& process : processes_) ::syscall(SYS_pidfd_send_signal, process.handle, SIGKILL, nullptr, 0);
}

void RankProcesses::watch() {
  std::vector<pollfd> files = {{ending_, POLLIN, 0}};
  for (const Process& process : processes_) files.push_back({process.handle, POLLIN, 0});
  while (::poll(files.data(), files.size(), -1) < 0 && errno == EINTR) {
  }
  if (files[0].revents != 0) return;
  for (size_t i = 1; i < files.size(); ++i) {
    siginfo_t info{};
    if (files[i].revents == 0 ||
        ::waitid(P_PID, static_cast<id_t>(processes_[i - 1].pid), &info, WEXITED | WNOWAIT) != 0)
      continue;
    kill();
    lost_("rank " + std::to_string(i) + " (process " + std::to_string(info.si_pid) + ") " + how_it_ended(info));
    return;
  }
}

void RankProcesses::end() {
  for (Process& process : processes_) close_if_open(&process.input);
  const auto deadline = std::chrono::steady_clock::now() + kGrace;
  for (Process& process : processes_) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd ended{process.handle, POLLIN, 0};
    if (::poll(&ended, 1, std::max(0, static_cast<int>(left.count()))) != 1) ::kill(process.pid, SIGKILL);
    ::waitpid(process.pid, nullptr, 0);
    close_if_open(&process.handle);
  }
  close_if_open(&ending_);
}

void follow_parent() {
  for (const int ending : {SIGINT, SIGTERM, SIGHUP}) ::signal(ending, SIG_IGN);
  std::thread([] {
    std::array<char, 64> buffer;
    ssize_t n = 0;
    do {
      n = ::read(STDIN_FILENO, buffer.data(), buffer.size());
    } while (n > 0 || (n < 0 && errno == EINTR));
    ::_exit(0);
  }).detach();
}

}  // namespace smartkv

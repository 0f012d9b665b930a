// The part of ConnectionFront that accepts connections and makes room for them.
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "engine/log.h"
#include "server/http/connection_front.h"

namespace smartkv::http {

namespace {

constexpr int kAcceptedAtOnce = 64;  // most connections accepted before existing clients are served again
// Pause when no descriptor is free. Without it, epoll would report the same waiting client again at once.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
// Time that a connected client gets to begin its request while others want its place.
constexpr auto kPatience = std::chrono::seconds(1);

// Returns whether a client is waiting to be accepted. accept() cannot tell when no descriptor is free.
bool is_readable(int listening) {
  pollfd fd{.fd = listening, .events = POLLIN, .revents = 0};
  return ::poll(&fd, 1, 0) > 0;
}

}  // namespace

int64_t ConnectionFront::connections() const {
  return static_cast<int64_t>(clients_.size() - deadlines(Phase::kSurplus).size() - deadlines(Phase::kClosing).size());
}

bool ConnectionFront::make_room() {
  if (connections() < options_.max_connections || close_one_idle()) return true;
  const Deadlines& fresh = deadlines(Phase::kFresh);
  const auto accepted_before = Clock::now() - kPatience + std::chrono::seconds(options_.timeouts.keep_alive_s);
  if (fresh.empty() || fresh.begin()->first > accepted_before) return false;
  guard(fresh.begin()->second, [this](Client& client) { turn_away(client); });
  return true;
}

bool ConnectionFront::close_one_idle() {
  const Deadlines& idle = deadlines(Phase::kIdle);
  if (idle.empty()) return false;
  close(*clients_.at(idle.begin()->second));
  return true;
}

// Keeps the number of clients beyond max_connections below kSurplus, for which descriptors are reserved. Clients that
// have their answer are closed first, the oldest before the others. Then the oldest surplus clients are turned away.
void ConnectionFront::limit_surplus() {
  const Deadlines &closing = deadlines(Phase::kClosing), &surplus = deadlines(Phase::kSurplus);
  while (static_cast<int64_t>(closing.size() + surplus.size()) >= kSurplus) {
    if (!closing.empty()) {
      close(*clients_.at(closing.begin()->second));
    } else {
      guard(surplus.begin()->second, [this](Client& client) { turn_away(client); });
    }
  }
}

bool ConnectionFront::admit(Client& client) {
  if (!make_room()) return false;
  enter(client, Phase::kFresh, client.deadline);
  return true;
}

void ConnectionFront::turn_away(Client& client) {
  refuse(client, openai::ApiError(503, "server_error",
                                  "The server has reached its limit of " + std::to_string(options_.max_connections) +
                                      " connections (option max_connections)",
                                  "", "overloaded", kRetryAfterS));
}

void ConnectionFront::accept_clients() {
  bool made_room = false;
  for (int i = 0; i < kAcceptedAtOnce && is_readable(listening_); ++i) {
    limit_surplus();
    const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      made_room = false;
      accept_errors_ = 0;
      add_client(socket);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!std::exchange(made_room, true) && close_one_idle()) continue;
      if (accept_errors_++ == 0) log(LogLevel::kWarning, {"cannot accept connections for now: ", std::strerror(errno)});
      return pause_accepting(kAcceptPause);
    }  // any other error concerns only the connection that would have been accepted, or that client has left
  }
}

void ConnectionFront::add_client(int socket) {
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  const uint64_t id = next_id_++;
  const bool room = make_room();
  try {
    auto client = std::make_unique<Client>(socket, options_);
    client->id = id;
    deadlines(client->phase).emplace(client->deadline, id);
    clients_.emplace(id, std::move(client));
  } catch (const std::exception& error) {
    log_error({"connection closed: ", error.what()});
    deadlines(Phase::kFresh).erase({Clock::time_point::max(), id});
    ::close(socket);
    return;
  }
  guard(id, [this, room](Client& client) {
    if (!watch(client, true)) return close(client);
    if (room) return enter(client, Phase::kFresh, Clock::now() + std::chrono::seconds(options_.timeouts.keep_alive_s));
    enter(client, Phase::kSurplus, Clock::now() + kPatience);
  });
}

void ConnectionFront::pause_accepting(Clock::duration time) {
  accept_again_ = Clock::now() + time;
  if (!std::exchange(accepting_, false)) return;
  epoll_event event{.events = 0, .data = {.u64 = kListening}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, listening_, &event);
}

void ConnectionFront::resume_accepting() {
  accept_again_ = Clock::time_point::max();
  if (std::exchange(accepting_, true)) return;
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kListening}};
  ::epoll_ctl(epoll_, EPOLL_CTL_MOD, listening_, &event);
}

}  // namespace smartkv::http

#include "server/http/connection_front.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "engine/log.h"

namespace smartkv::http {

using openai::ApiError;

namespace {

// Bytes read at once. A small number keeps many small requests of one client from holding up the others.
constexpr size_t kScratchBytes = TlsSession::kMostRead;
// Long enough for a client on a slow line to read a refusal. The connection keeps its descriptor for so long.
constexpr auto kClosingTime = std::chrono::seconds(1);

ApiError too_slow(int seconds) {
  return ApiError(408, "invalid_request_error",
                  "The request did not arrive within " + std::to_string(seconds) + " s (option request_timeout)");
}

ApiError too_much(int64_t limit) {
  return ApiError(503, "server_error",
                  "The requests that are arriving or running exceed the limit of " + std::to_string(limit) +
                      " bytes (option max_buffered_bytes)",
                  "", "overloaded", ConnectionFront::kRetryAfterS);
}

}  // namespace

ConnectionFront::ConnectionFront(int listening_socket, FrontOptions options, Handlers handlers)
    : options_(std::move(options)),
      handlers_(std::move(handlers)),
      listening_(listening_socket),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      scratch_(kScratchBytes),
      next_id_(kFirstClient),
      workers_(static_cast<size_t>(options_.max_threads)) {
  const auto add = [this](int fd, uint64_t id) {
    epoll_event event{.events = EPOLLIN, .data = {.u64 = id}};
    return ::epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) == 0;
  };
  if (epoll_ < 0 || event_ < 0 || !add(listening_, kListening) || !add(event_, kEvent)) {
    const std::string reason = std::strerror(errno);
    for (const int fd : {listening_, epoll_, event_}) ::close(fd);
    throw std::runtime_error("cannot watch connections: " + reason);
  }
  thread_ = std::thread([this] { run(); });
}

ConnectionFront::~ConnectionFront() {
  stop();
  for (const int fd : {epoll_, event_}) ::close(fd);
}

void ConnectionFront::wait_until_idle() {
  std::unique_lock lock(mutex_);
  idle_.wait(lock, [this] { return in_flight_ == 0; });
}

void ConnectionFront::stop() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake();
  thread_.join();
  ::close(listening_);
  // Workers notice the end of a connection when they write to its socket.
  for (const auto& [id, client] : clients_) ::shutdown(client->connection.socket(), SHUT_RDWR);
  workers_.shutdown();
  for (const auto& [id, client] : clients_) ::close(client->connection.socket());
  clients_.clear();
}

void ConnectionFront::wake() {
  const uint64_t one = 1;
  if (::write(event_, &one, sizeof(one)) < 0 && errno != EAGAIN) log_error("cannot wake the connection thread");
}

void ConnectionFront::run() {
  std::array<epoll_event, 256> events;
  for (;;) {
    const int n = ::epoll_wait(epoll_, events.data(), static_cast<int>(events.size()), milliseconds_to_wait());
    {
      const std::lock_guard lock(mutex_);
      if (stopping_) return;
    }
    for (int i = 0; i < n; ++i) handle_event(events[static_cast<size_t>(i)].data.u64);
    end_overdue();
  }
}

void ConnectionFront::handle_event(uint64_t id) {
  if (id == kListening) return accept_clients();
  if (id == kEvent) return take_back();
  if (clients_.contains(id)) guard(id, [this](Client& client) { receive(client); });  // else an earlier event closed it
}

void ConnectionFront::guard(uint64_t id, const std::function<void(Client&)>& step) {
  try {
    step(*clients_.at(id));
  } catch (const std::exception& error) {
    log_error({"connection closed: ", error.what()});
    if (const auto client = clients_.find(id); client != clients_.end()) close(*client->second);
  }
}

int ConnectionFront::milliseconds_to_wait() const {
  Clock::time_point next = accept_again_;
  for (const Deadlines& deadlines : deadlines_) {
    if (!deadlines.empty()) next = std::min(next, deadlines.begin()->first);
  }
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void ConnectionFront::end_overdue() {
  const Clock::time_point now = Clock::now();
  if (accept_again_ <= now) resume_accepting();
  for (const Deadlines& deadlines : deadlines_) {
    while (!deadlines.empty() && deadlines.begin()->first <= now) {
      guard(deadlines.begin()->second, [this](Client& client) {
        if (client.phase == Phase::kReading) return refuse(client, too_slow(options_.timeouts.request_s));
        if (client.phase == Phase::kSurplus) return turn_away(client);
        close(client);
      });
    }
  }
}

void ConnectionFront::receive(Client& client) {
  // Bytes after a refusal are thrown away without decoding TLS.
  const ssize_t n = client.phase == Phase::kClosing
                        ? ::recv(client.connection.socket(), scratch_.data(), scratch_.size(), 0)
                        : client.connection.receive(scratch_.data(), scratch_.size());
  if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR)) return;
  if (n <= 0) {
    if (n == 0 && client.phase == Phase::kReading) {
      return refuse(client, openai::invalid_request("", "The HTTP request was cut off"));
    }
    return close(client);
  }
  if (client.phase != Phase::kClosing) take_bytes(client, {scratch_.data(), static_cast<size_t>(n)});
}

void ConnectionFront::take_bytes(Client& client, std::string_view bytes) {
  RequestReader& reader = client.connection.reader;
  try {
    while (!bytes.empty()) {
      bytes.remove_prefix(reader.read(bytes));
      if (reader.has_head() && !client.checked) {
        if (client.phase == Phase::kSurplus && !admit(client)) return turn_away(client);
        client.checked = true;
        if (answered_early(client)) {
          if (client.phase == Phase::kClosing) return;
          continue;
        }
      }
      if (reader.done()) return hand_over(client, bytes);
    }
  } catch (const ApiError& error) {
    return refuse(client, error);
  }
  if (!reader.begun()) return;
  if (client.phase == Phase::kIdle || client.phase == Phase::kFresh) {
    enter(client, Phase::kReading, Clock::now() + std::chrono::seconds(options_.timeouts.request_s));
  }
  if (reader.has_head()) ask_for_body(client);
  count_bytes(client);
  free_bytes();
}

bool ConnectionFront::answered_early(Client& client) {
  const Request& request = client.connection.reader.request();
  Response response;
  if (!handlers_.answer_early(client.connection, response)) return false;
  // If the request has a body, the connection closes: the unread bytes would be taken for the next request.
  const bool keep_alive = request.keep_alive && !request.has_body();
  if (!send(client, response, keep_alive) || !keep_alive) {
    begin_closing(client);
  } else {
    expect_request(client);
  }
  return true;
}

void ConnectionFront::ask_for_body(Client& client) {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  if (!std::exchange(client.asked, true) && client.connection.reader.request().expects_continue) {
    client.connection.send(kContinue);
  }
}

void ConnectionFront::hand_over(Client& client, std::string_view following) {
  client.following = following;
  count_bytes(client);
  enter(client, Phase::kServing, Clock::time_point::max());
  free_bytes();
  if (buffered_bytes_ > options_.max_buffered_bytes) return refuse(client, too_much(options_.max_buffered_bytes));
  watch(client, false);
  {
    const std::lock_guard lock(mutex_);
    ++in_flight_;
  }
  const auto work = [this, &client] {
    client.usable = false;
    try {
      client.usable = handlers_.serve(client.connection);
    } catch (const std::exception& error) {
      log_error({"connection closed: ", error.what()});
    } catch (...) {
      log_error("connection closed: unknown exception");
    }
    give_back(client);
  };
  try {
    workers_.enqueue(work);
  } catch (const std::exception& error) {
    log_error({"cannot start a thread for a request: ", error.what()});
    {
      const std::lock_guard lock(mutex_);
      --in_flight_;
    }
    if (!watch(client, true)) return close(client);
    refuse(client, ApiError(503, "server_error", "The server could not start a thread for the request", "",
                            "overloaded", kRetryAfterS));
  }
}

void ConnectionFront::give_back(Client& client) {
  const std::lock_guard lock(mutex_);
  client.next_done = done_;
  done_ = &client;
  if (--in_flight_ == 0) idle_.notify_all();
  wake();
}

void ConnectionFront::take_back() {
  uint64_t count = 0;
  if (::read(event_, &count, sizeof(count)) < 0 && errno != EAGAIN) log_error("the event descriptor cannot be read");
  Client* latest = nullptr;
  {
    const std::lock_guard lock(mutex_);
    latest = std::exchange(done_, nullptr);
  }
  Client* done = nullptr;  // the same list, from the one that was given back first
  while (latest != nullptr) {
    Client* const client = latest;
    latest = client->next_done;
    client->next_done = std::exchange(done, client);
  }
  while (done != nullptr) {
    const uint64_t id = done->id;
    done = done->next_done;
    guard(id, [this](Client& client) { go_on(client); });
  }
}

void ConnectionFront::go_on(Client& client) {
  if (!watch(client, true)) return close(client);
  if (!client.usable) return begin_closing(client);
  const std::string following = std::exchange(client.following, {});
  expect_request(client);
  take_bytes(client, following);
}

void ConnectionFront::expect_request(Client& client) {
  client.connection.reader.reset();
  client.checked = client.asked = false;
  client.connection.client.clear();
  client.connection.key_name.clear();
  count_bytes(client);
  enter(client, Phase::kIdle, Clock::now() + std::chrono::seconds(options_.timeouts.keep_alive_s));
}

void ConnectionFront::refuse(Client& client, const ApiError& error) {
  Response response;
  handlers_.refuse(client.connection, error, response);
  send(client, response, false);
  begin_closing(client);
}

bool ConnectionFront::send(Client& client, const Response& response, bool keep_alive) {
  const std::string text = response.text(client.connection.reader.request().method == "HEAD",
                                         keep_alive ? options_.timeouts.keep_alive_s : 0);
  // These are a few hundred bytes. If they do not fit the socket's buffer, the client has not read earlier answers.
  return client.connection.send(text) == static_cast<ssize_t>(text.size());
}

void ConnectionFront::count_bytes(Client& client) {
  const int64_t bytes = client.connection.reader.bytes() + static_cast<int64_t>(client.following.capacity());
  buffered_bytes_ += bytes - std::exchange(client.bytes, bytes);
}

void ConnectionFront::free_bytes() {
  while (buffered_bytes_ > options_.max_buffered_bytes) {
    Client* largest = nullptr;
    for (const auto& [id, client] : clients_) {
      if (client->phase != Phase::kReading) continue;
      if (largest == nullptr || client->bytes > largest->bytes) largest = client.get();
    }
    if (largest == nullptr) return;
    refuse(*largest, too_much(options_.max_buffered_bytes));
  }
}

void ConnectionFront::begin_closing(Client& client) {
  client.connection.end_sending();
  client.connection.reader.reset();
  std::string().swap(client.following);
  count_bytes(client);
  enter(client, Phase::kClosing, Clock::now() + kClosingTime);
}

void ConnectionFront::close(Client& client) {
  deadlines(client.phase).erase({client.deadline, client.id});
  buffered_bytes_ -= client.bytes;
  client.connection.end_sending();
  ::close(client.connection.socket());
  clients_.erase(client.id);
  if (!accepting_) resume_accepting();
}

// Moves the client's entry to the deadlines of another phase. It allocates no memory, so it does not throw.
void ConnectionFront::enter(Client& client, Phase phase, Clock::time_point deadline) {
  auto entry = deadlines(client.phase).extract({client.deadline, client.id});
  entry.value().first = client.deadline = deadline;
  client.phase = phase;
  deadlines(phase).insert(std::move(entry));
}

// Adds the client's socket to epoll, or removes it; returns whether that succeeded. A connection is not watched while a
// worker answers on it: bytes that the client sends meanwhile stay in the socket.
bool ConnectionFront::watch(Client& client, bool on) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = client.id}};
  return ::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, client.connection.socket(), &event) == 0;
}

}  // namespace smartkv::http

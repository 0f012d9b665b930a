#include "server/http/connection_front.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <stdexcept>

#include "engine/log.h"

namespace smartkv::http {

using openai::ApiError;

namespace {

constexpr uint64_t kListening = 0, kEvent = 1, kFirstClient = 2;
constexpr size_t kScratchBytes = TlsSession::kMostRead;  // read at once: many small requests of one client do not hold up the others
constexpr int kAcceptedAtOnce = 64;  // between two looks at the clients that are there
// Long enough for a client on a slow line to read a refusal; its descriptor is taken meanwhile.
constexpr auto kClosingTime = std::chrono::seconds(1);
// Without descriptors nothing can be accepted, and epoll would report the waiting client again at once.
constexpr auto kAcceptPause = std::chrono::milliseconds(100);
constexpr int kRetryAfterS = 1;

ApiError too_slow(int seconds) {
  return ApiError(408, "invalid_request_error",
                  "The request did not arrive within " + std::to_string(seconds) + " s (option request_timeout)");
}

ApiError too_much(int64_t limit) {
  return ApiError(503, "server_error",
                  "The requests that are arriving or running hold more than the limit of " + std::to_string(limit) +
                      " bytes (option max_buffered_bytes)",
                  "", "overloaded", kRetryAfterS);
}

// Whether a client waits. accept() does not say without a free descriptor.
bool is_readable(int listening) {
  pollfd fd{.fd = listening, .events = POLLIN, .revents = 0};
  return ::poll(&fd, 1, 0) > 0;
}

const char* reason_of(int status) {
  switch (status) {
    case 204: return "No Content";
    case 400: return "Bad Request";
    case 401: return "Unauthorized";
    case 404: return "Not Found";
    case 405: return "Method Not Allowed";
    case 408: return "Request Timeout";
    case 413: return "Payload Too Large";
    case 414: return "URI Too Long";
    case 415: return "Unsupported Media Type";
    case 417: return "Expectation Failed";
    case 431: return "Request Header Fields Too Large";
    case 501: return "Not Implemented";
    case 503: return "Service Unavailable";
    default: return "Error";
  }
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
  // Workers still write to the sockets that were cut, and notice.
  for (const auto& [id, client] : clients_) ::shutdown(client->connection.socket(), SHUT_RDWR);
  workers_.shutdown();
  for (const auto& [id, client] : clients_) ::close(client->connection.socket());
  clients_.clear();
}

void ConnectionFront::wake() {
  const uint64_t one = 1;
  if (::write(event_, &one, sizeof(one)) < 0 && errno != EAGAIN) log_error("the thread of the connections is stuck");
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
  if (clients_.contains(id)) guard(id, [this](Client& client) { receive(client); });  // else closed by an event before
}

void ConnectionFront::guard(uint64_t id, const std::function<void(Client&)>& step) {
  try {
    step(*clients_.at(id));
  } catch (const std::exception& error) {
    log_error(std::string("connection closed: ") + error.what());
    if (const auto client = clients_.find(id); client != clients_.end()) close(*client->second);
  }
}

int ConnectionFront::milliseconds_to_wait() const {
  Clock::time_point next = accept_again_;
  if (!deadlines_.empty()) next = std::min(next, deadlines_.begin()->first);
  if (next == Clock::time_point::max()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void ConnectionFront::end_overdue() {
  const Clock::time_point now = Clock::now();
  if (accept_again_ <= now) resume_accepting();
  while (!deadlines_.empty() && deadlines_.begin()->first <= now) {
    Client& client = *clients_.at(deadlines_.begin()->second);
    if (client.phase == Phase::kReading) {
      refuse(client, too_slow(options_.timeouts.request_s));
    } else {
      close(client);
    }
  }
}

void ConnectionFront::accept_clients() {
  bool made_room = false;
  for (int i = 0; i < kAcceptedAtOnce && is_readable(listening_); ++i) {
    if (static_cast<int64_t>(clients_.size()) >= options_.max_connections && !close_one_idle()) {
      return pause_accepting(kAcceptPause);
    }
    const int socket = ::accept4(listening_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket >= 0) {
      made_room = false;
      accept_errors_ = 0;
      add_client(socket);
    } else if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
      if (!std::exchange(made_room, true) && close_one_idle()) continue;
      if (accept_errors_++ == 0) log_warning(std::string("connections have to wait: ") + std::strerror(errno));
      return pause_accepting(kAcceptPause);
    }  // any other error is of the connection that would have been accepted, or it is gone
  }
}

void ConnectionFront::add_client(int socket) {
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  const uint64_t id = next_id_++;
  try {
    auto client = std::make_unique<Client>(socket, options_);
    client->id = id;
    clients_.emplace(id, std::move(client));
  } catch (const std::exception& error) {
    log_error(std::string("connection closed: ") + error.what());
    ::close(socket);
    return;
  }
  guard(id, [this](Client& client) {
    if (!watch(client, true)) return close(client);
    expect_request(client);
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

bool ConnectionFront::close_one_idle() {
  for (const auto& [deadline, id] : deadlines_) {
    Client& client = *clients_.at(id);
    if (client.phase == Phase::kReading) continue;
    close(client);
    return true;
  }
  return false;
}

void ConnectionFront::receive(Client& client) {
  // What comes behind a refusal is thrown away as it is.
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
        client.checked = true;
        if (answered_early(client)) {
          if (client.phase == Phase::kClosing) return;
          continue;
        }
        reader.forget_head();
      }
      if (reader.done()) return hand_over(client, bytes);
    }
  } catch (const ApiError& error) {
    return refuse(client, error);
  }
  if (!reader.begun()) return;
  if (client.phase == Phase::kIdle) {
    client.phase = Phase::kReading;
    set_deadline(client, Clock::now() + std::chrono::seconds(options_.timeouts.request_s));
  }
  if (reader.has_head()) ask_for_body(client);
  count_bytes(client);
  free_bytes();
}

bool ConnectionFront::answered_early(Client& client) {
  const RequestHead& head = client.connection.reader.head();
  httplib::Response response;
  if (!handlers_.answer_early(head, response)) return false;
  // Of a body that is not read, the bytes would be taken for the next request.
  const bool keep_alive = head.keep_alive && !head.has_body();
  if (!send(client, response, head.method != "HEAD", keep_alive) || !keep_alive) {
    begin_closing(client);
  } else {
    expect_request(client);
  }
  return true;
}

void ConnectionFront::ask_for_body(Client& client) {
  static constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
  if (!std::exchange(client.asked, true) && client.connection.reader.head().expects_continue) {
    client.connection.send(kContinue.data(), kContinue.size());
  }
}

void ConnectionFront::hand_over(Client& client, std::string_view following) {
  client.following = following;
  count_bytes(client);
  client.phase = Phase::kServing;
  free_bytes();
  if (buffered_bytes_ > options_.max_buffered_bytes) return refuse(client, too_much(options_.max_buffered_bytes));
  watch(client, false);
  set_deadline(client, Clock::time_point::max());
  {
    const std::lock_guard lock(mutex_);
    ++in_flight_;
  }
  const auto work = [this, &client] {
    bool usable = false;
    try {
      client.connection.begin_serving();
      usable = handlers_.serve(client.connection);
    } catch (const std::exception& error) {
      log_error(std::string("connection closed: ") + error.what());
    }
    const std::lock_guard lock(mutex_);
    done_.emplace_back(client.id, usable);
    if (--in_flight_ == 0) idle_.notify_all();
    wake();
  };
  try {
    workers_.enqueue(work);
  } catch (const std::exception& error) {
    log_error(std::string("no thread for a request: ") + error.what());
    {
      const std::lock_guard lock(mutex_);
      --in_flight_;
    }
    if (!watch(client, true)) return close(client);
    refuse(client, ApiError(503, "server_error", "The server has no thread for the request", "", "overloaded",
                            kRetryAfterS));
  }
}

void ConnectionFront::take_back() {
  uint64_t count = 0;
  if (::read(event_, &count, sizeof(count)) < 0 && errno != EAGAIN) log_error("the event descriptor cannot be read");
  std::vector<std::pair<uint64_t, bool>> done;
  {
    const std::lock_guard lock(mutex_);
    done.swap(done_);
  }
  for (const auto& [id, usable] : done) {
    guard(id, [this, usable = usable](Client& client) { go_on(client, usable); });
  }
}

void ConnectionFront::go_on(Client& client, bool usable) {
  if (!watch(client, true)) return close(client);
  if (!usable) return begin_closing(client);
  const std::string following = std::exchange(client.following, {});
  expect_request(client);
  take_bytes(client, following);
}

void ConnectionFront::expect_request(Client& client) {
  client.connection.reader.reset();
  client.checked = client.asked = false;
  client.phase = Phase::kIdle;
  count_bytes(client);
  set_deadline(client, Clock::now() + std::chrono::seconds(options_.timeouts.keep_alive_s));
}

void ConnectionFront::refuse(Client& client, const ApiError& error) {
  httplib::Response response;
  handlers_.refuse(error, response);
  send(client, response, client.connection.reader.head().method != "HEAD", false);
  begin_closing(client);
}

bool ConnectionFront::send(Client& client, const httplib::Response& response, bool with_body, bool keep_alive) {
  std::string text = "HTTP/1.1 " + std::to_string(response.status) + ' ' + reason_of(response.status) + "\r\n";
  for (const auto& [name, value] : response.headers) text += name + ": " + value + "\r\n";
  if (response.status != 204) text += "Content-Length: " + std::to_string(response.body.size()) + "\r\n";
  text += keep_alive ? "Connection: keep-alive\r\n\r\n" : "Connection: close\r\n\r\n";
  if (with_body) text += response.body;
  // A few hundred bytes: a client whose buffer has no room for them has not read its answers.
  return client.connection.send(text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

void ConnectionFront::count_bytes(Client& client) {
  const int64_t bytes =
      client.connection.reader.bytes() + static_cast<int64_t>(client.following.capacity());
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
  client.phase = Phase::kClosing;
  count_bytes(client);
  set_deadline(client, Clock::now() + kClosingTime);
}

void ConnectionFront::close(Client& client) {
  set_deadline(client, Clock::time_point::max());
  buffered_bytes_ -= client.bytes;
  client.connection.end_sending();
  ::close(client.connection.socket());
  clients_.erase(client.id);
  if (!accepting_) resume_accepting();
}

void ConnectionFront::set_deadline(Client& client, Clock::time_point deadline) {
  deadlines_.erase({client.deadline, client.id});
  client.deadline = deadline;
  if (deadline != Clock::time_point::max()) deadlines_.emplace(deadline, client.id);
}

// A connection that a worker answers on is not watched: what the client sends meanwhile stays in the socket.
bool ConnectionFront::watch(Client& client, bool on) {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = client.id}};
  return ::epoll_ctl(epoll_, on ? EPOLL_CTL_ADD : EPOLL_CTL_DEL, client.connection.socket(), &event) == 0;
}

}  // namespace smartkv::http

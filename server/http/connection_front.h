// Owns the sockets: accepts connections, reads each until a whole request has arrived, hands it to a worker thread and
// takes the connection back for the next one. One thread, which never waits for a client; idle and slow connections
// cost a descriptor and the bytes that they sent.
//
// Beyond max_connections, room is made in this order:
//  - The connection that has been idle for the longest after an answer is closed.
//  - The connection that has been silent for the longest, at least kPatience, since it was accepted is answered with 503.
//  - The new connection is answered with 503 as soon as its request's head has arrived, or after kPatience.
// Memory that cannot be had ends one connection, never the thread.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <thread>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/http/connection.h"
#include "server/http/worker_pool.h"
#include "server/openai/error.h"

namespace smartkv::http {

struct ConnectionTimeouts {
  int request_s = 30;     // for a whole request, head and body, from its first byte; then 408
  int write_s = 30;       // for a client that does not read
  // Between two requests. Longer than proxies keep theirs (nginx 60 s, AWS 60 s), which would otherwise reuse a connection that is
  // being closed.
  int keep_alive_s = 75;
};

struct FrontOptions {
  RequestLimits limits = {};
  ConnectionTimeouts timeouts = {};
  int64_t max_connections = 0;     // see above
  int64_t max_buffered_bytes = 0;  // of all requests together, unfinished or running; at least one of the largest
  int64_t max_threads = 0;         // requests that are served at once
  std::shared_ptr<const TlsContext> tls = nullptr;  // null: none
};

class ConnectionFront {
 public:
  struct Handlers {
    // Whether the head that the connection has read decides the answer alone; fills `response` then. Called by the front's
    // thread: it has to be quick.
    std::function<bool(Connection& connection, httplib::Response& response)> answer_early;
    // The answer to what is no acceptable request: malformed, too large, too slow. The front's thread, too.
    std::function<void(const Connection& connection, const openai::ApiError& error, httplib::Response& response)> refuse;
    // Answers the request of the connection. False: the connection cannot be used any more. Any worker thread.
    std::function<bool(Connection& connection)> serve;
  };

  // `listening_socket`, not blocking, becomes the front's. Begins to accept at once. Throws std::runtime_error.
  ConnectionFront(int listening_socket, FrontOptions options, Handlers handlers);
  ~ConnectionFront();

  void wait_until_idle();  // until no worker has a request
  void stop();             // cuts every connection; returns when all threads have ended

  // Connections beyond max_connections that may be open while they are told so, or closed.
  static constexpr int64_t kSurplus = 128;
  static constexpr int kRetryAfterS = 1;  // in answers with 503

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase : uint8_t {
    kFresh,    // accepted; no byte of a request has come
    kSurplus,  // the same, or a part of a head has come, beyond max_connections
    kIdle,     // between two requests
    kReading,
    kServing,  // a worker has it
    kClosing,  // has its last answer; what still comes is thrown away
  };
  static constexpr size_t kPhases = 6;
  static constexpr uint64_t kListening = 0, kEvent = 1, kFirstClient = 2;  // what epoll tells of
  struct Client {
    Client(int socket, const FrontOptions& options)
        : connection(socket, options.limits, options.timeouts.write_s,
                     options.tls == nullptr ? nullptr : options.tls->open(socket)) {}
    Connection connection;
    uint64_t id = 0;
    Phase phase = Phase::kFresh;
    bool checked = false;         // the head of its request was shown to answer_early
    bool asked = false;           // for its body, if it expects to be
    std::string following;        // bytes behind the request that is being served
    int64_t bytes = 0;            // held by its request and `following`, as counted in buffered_bytes_
    Clock::time_point deadline = Clock::time_point::max();
    Client* next_done = nullptr;  // in done_
    bool usable = false;          // once served: the connection can be used on
  };
  using Deadlines = std::set<std::pair<Clock::time_point, uint64_t>>;  // of clients, by id

  void run();
  void handle_event(uint64_t id);
  void guard(uint64_t id, const std::function<void(Client&)>& step);  // closes a client whose step throws
  int milliseconds_to_wait() const;
  void end_overdue();

  void accept_clients();
  void add_client(int socket);
  void pause_accepting(Clock::duration time);
  void resume_accepting();
  int64_t connections() const;  // that count against max_connections
  bool make_room();             // for one more; false: every connection is in use
  bool close_one_idle();        // the one that has been so for the longest; false: none is
  void limit_surplus();
  bool admit(Client& client);   // a surplus one; false: there is no room for it
  void turn_away(Client& client);  // 503 for one beyond max_connections

  void receive(Client& client);
  // Reads requests out of `bytes` until one has to be served, or no byte is left.
  void take_bytes(Client& client, std::string_view bytes);
  bool answered_early(Client& client);  // false: the request has to be read on
  void ask_for_body(Client& client);    // 100 Continue
  void hand_over(Client& client, std::string_view following);
  void give_back(Client& client);  // called by the worker
  void take_back();  // those that workers have done with
  void go_on(Client& client);
  void expect_request(Client& client);
  void refuse(Client& client, const openai::ApiError& error);
  bool send(Client& client, const httplib::Response& response, bool with_body, bool keep_alive);
  void count_bytes(Client& client);
  void free_bytes();  // refuses the largest unfinished requests while all together are too large
  void begin_closing(Client& client);
  void close(Client& client);

  Deadlines& deadlines(Phase phase) { return deadlines_[static_cast<size_t>(phase)]; }
  const Deadlines& deadlines(Phase phase) const { return deadlines_[static_cast<size_t>(phase)]; }
  void enter(Client& client, Phase phase, Clock::time_point deadline);
  bool watch(Client& client, bool on);
  void wake();

  FrontOptions options_;
  Handlers handlers_;
  int listening_, epoll_, event_;
  std::vector<char> scratch_;

  // The front's thread alone.
  std::unordered_map<uint64_t, std::unique_ptr<Client>> clients_;
  std::array<Deadlines, kPhases> deadlines_;  // of the clients in each phase
  uint64_t next_id_;
  int64_t buffered_bytes_ = 0;
  bool accepting_ = true;
  int64_t accept_errors_ = 0;  // since a connection was accepted
  Clock::time_point accept_again_ = Clock::time_point::max();

  std::mutex mutex_;  // guards what follows
  std::condition_variable idle_;
  Client* done_ = nullptr;  // served, to be taken back: a list by next_done
  int64_t in_flight_ = 0;
  bool stopping_ = false;

  WorkerPool workers_;
  std::thread thread_;
};

}  // namespace smartkv::http

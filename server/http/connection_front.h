// The front of the HTTP server. It owns the sockets: it accepts connections, reads each until a whole request has
// arrived, hands the request to a worker thread, and takes the connection back for the next request. It is one thread,
// which never waits for a client. An idle or slow connection costs a descriptor and the bytes that it sent.
//
// Beyond max_connections, room is made in this order:
//  - The connection that has been idle for the longest after an answer is closed.
//  - The connection that has been silent since it was accepted, for the longest and at least for kPatience, gets a 503.
//  - The new connection is answered with 503 as soon as its request's head has arrived, or after kPatience.
// If memory runs out, one connection ends, never the thread.
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

#include "server/http/response_writer.h"
#include "server/http/worker_pool.h"
#include "server/openai/error.h"

namespace smartkv::http {

// Timeouts of a connection, in seconds.
struct ConnectionTimeouts {
  int request_s = 30;  // for a whole request, head and body, from its first byte; a slower one gets a 408
  int write_s = 30;    // for a client that reads nothing
  // Between two requests. Longer than the time for which proxies keep connections (nginx 60 s, AWS 60 s). Otherwise a
  // proxy may reuse a connection that is being closed.
  int keep_alive_s = 75;
};

struct FrontOptions {
  RequestLimits limits = {};
  ConnectionTimeouts timeouts = {};
  int64_t max_connections = 0;  // see above
  // Bytes of all requests together, arriving or running. REQUIRES: the largest allowed request fits.
  int64_t max_buffered_bytes = 0;
  int64_t max_threads = 0;                          // number of requests that are served at once
  std::shared_ptr<const TlsContext> tls = nullptr;  // null for plain HTTP
};

class ConnectionFront {
 public:
  // The front's callbacks. They must be safe to call from several threads at once.
  struct Handlers {
    // Returns true and fills `response` if the head that the connection has read is enough to answer. Runs on the
    // front's thread, so it has to be quick.
    std::function<bool(Connection& connection, Response& response)> answer_early;
    // Fills the response to a request that was not accepted: malformed, too large, too slow, or beyond a limit of the
    // front. Runs on the front's thread.
    std::function<void(const Connection& connection, const openai::ApiError& error, Response& response)> refuse;
    // Answers the request of the connection. Returns false if the connection must be closed. Runs on any worker thread.
    std::function<bool(Connection& connection)> serve;
  };

  // Takes ownership of `listening_socket`, which must be non-blocking, and begins to accept at once. Throws
  // std::runtime_error.
  ConnectionFront(int listening_socket, FrontOptions options, Handlers handlers);
  ~ConnectionFront();

  void wait_until_idle();  // returns when no worker has a request
  void stop();             // cuts every connection; returns when all threads have ended

  // Number of connections beyond max_connections that may be open while they are refused or closed.
  static constexpr int64_t kSurplus = 128;
  static constexpr int kRetryAfterS = 1;  // Retry-After of answers with 503, in seconds

 private:
  using Clock = std::chrono::steady_clock;
  enum class Phase : uint8_t {
    kFresh,    // accepted; no byte of a request has arrived
    kSurplus,  // accepted beyond max_connections; at most a part of a request's head has arrived
    kIdle,     // between two requests
    kReading,
    kServing,  // a worker has it
    kClosing,  // its last answer was sent; bytes that still arrive are thrown away
  };
  static constexpr size_t kPhases = 6;
  static constexpr uint64_t kListening = 0, kEvent = 1, kFirstClient = 2;  // ids in the events of epoll
  struct Client {
    Client(int socket, const FrontOptions& options)
        : connection(socket, options.limits, options.timeouts.write_s,
                     options.tls == nullptr ? nullptr : options.tls->open(socket)) {}
    Connection connection;
    uint64_t id = 0;
    Phase phase = Phase::kFresh;
    bool checked = false;   // the head of its request was shown to answer_early
    bool asked = false;     // its body was asked for (100 Continue), if it expects that
    std::string following;  // bytes after the request that is being served
    int64_t bytes = 0;      // bytes of its request and of `following`, as counted in buffered_bytes_
    Clock::time_point deadline = Clock::time_point::max();
    Client* next_done = nullptr;  // next in the list done_
    bool usable = false;          // set when a request was served: the connection can serve another one
  };
  using Deadlines = std::set<std::pair<Clock::time_point, uint64_t>>;  // deadlines and ids of clients

  void run();
  void handle_event(uint64_t id);
  void guard(uint64_t id, const std::function<void(Client&)>& step);  // runs `step`; closes the client if it throws
  int milliseconds_to_wait() const;
  void end_overdue();

  void accept_clients();
  void add_client(int socket);
  void pause_accepting(Clock::duration time);
  void resume_accepting();
  int64_t connections() const;  // number of connections that count against max_connections
  bool make_room();             // makes room for one more; false if every connection is in use
  bool close_one_idle();        // closes the connection that has been idle for the longest; false if none is idle
  void limit_surplus();
  bool admit(Client& client);      // admits a surplus connection; false if there is no room
  void turn_away(Client& client);  // answers a connection beyond max_connections with 503

  void receive(Client& client);
  // Reads requests from `bytes` until one has to be served or no byte is left.
  void take_bytes(Client& client, std::string_view bytes);
  bool answered_early(Client& client);                         // false if the rest of the request has to be read
  void ask_for_body(Client& client);                           // sends 100 Continue once, if the client expects it
  void hand_over(Client& client, std::string_view following);  // gives the request to a worker
  void give_back(Client& client);                              // called by the worker
  void take_back();            // takes back the connections that workers have finished with
  void go_on(Client& client);  // resumes a connection that a worker gave back
  void expect_request(Client& client);
  void refuse(Client& client, const openai::ApiError& error);
  bool send(Client& client, const Response& response, bool keep_alive);
  void count_bytes(Client& client);
  void free_bytes();  // refuses the largest arriving requests while all requests together exceed max_buffered_bytes
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

  // Used by the front's thread only.
  std::unordered_map<uint64_t, std::unique_ptr<Client>> clients_;
  std::array<Deadlines, kPhases> deadlines_;  // deadlines of the clients in each phase
  uint64_t next_id_;
  int64_t buffered_bytes_ = 0;
  bool accepting_ = true;
  int64_t accept_errors_ = 0;  // errors since a connection was last accepted
  Clock::time_point accept_again_ = Clock::time_point::max();

  std::mutex mutex_;  // guards the members down to stopping_
  std::condition_variable idle_;
  Client* done_ = nullptr;  // list, by next_done, of connections that workers gave back, the latest first
  int64_t in_flight_ = 0;
  bool stopping_ = false;

  WorkerPool workers_;
  std::thread thread_;
};

}  // namespace smartkv::http

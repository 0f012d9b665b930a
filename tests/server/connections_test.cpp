// Clients that are slow, idle, greedy or hostile, over real sockets: the promises of docs/operate/security.md about
// connections.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <gtest/gtest.h>

#include <chrono>
#include <random>
#include <thread>

#include "server/http/listening_socket.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using std::chrono::steady_clock;

const std::string kHealth = "GET /health HTTP/1.1\r\nHost: x\r\n\r\n";
const std::string kTokenize = post_text("/tokenize", R"({"prompt": "a"})");

// Sends one request on a connection of its own and returns the answer.
std::string answer(int port, const std::string& request) {
  RawConnection connection(port);
  connection.send(request);
  return connection.read_all();
}

int response_status(const std::string& response) {
  return response.starts_with("HTTP/1.1 ") ? std::stoi(response.substr(9, 3)) : 0;
}

bool healthy(int port) {
  return response_status(answer(port, "GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")) == 200;
}

TEST(Connections, IdleAndDrippingOnesHoldNoThread) {
  constexpr int kIdle = 2000, kDripping = 300;
  if (http::raise_open_file_limit() < 2 * (kIdle + kDripping) + 200) GTEST_SKIP() << "too few open files are allowed";
  TestServer server({.http_threads = 2});
  std::vector<std::unique_ptr<RawConnection>> idle, dripping;
  for (int i = 0; i < kIdle; ++i) {
    idle.push_back(std::make_unique<RawConnection>(server.port));
    idle.back()->send(kHealth);
    ASSERT_EQ(response_status(idle.back()->read_until("}")), 200) << i;
  }
  for (int i = 0; i < kDripping; ++i) {
    dripping.push_back(std::make_unique<RawConnection>(server.port));
    dripping.back()->send("GET /health HT");
  }
  EXPECT_TRUE(healthy(server.port));
  for (auto& connection : dripping) connection->send("TP/1.1\r\nX: ");
  EXPECT_TRUE(healthy(server.port));
  idle[1234]->send(kTokenize);  // every connection still works
  EXPECT_NE(idle[1234]->read_until("}").find("[97]"), std::string::npos);
  dripping[123]->send("y\r\n\r\n");
  EXPECT_EQ(response_status(dripping[123]->read_until("}")), 200);
}

TEST(Connections, AWholeRequestHasOneDeadline) {
  TestServer server({.timeouts = {.request_s = 1}});
  const auto begin = steady_clock::now();
  RawConnection head(server.port), body(server.port), idle(server.port);
  head.send("GET /health HTTP/1.1\r\n");
  body.send("POST /tokenize HTTP/1.1\r\nContent-Length: 1000\r\n\r\n{");
  std::thread drip([&] {  // bytes that keep coming do not extend the deadline
    for (int i = 0; i < 30; ++i) {
      body.send(" ");
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  });
  EXPECT_EQ(response_status(head.read_all()), 408);
  EXPECT_EQ(response_status(body.read_all()), 408);
  EXPECT_GE(steady_clock::now() - begin, std::chrono::milliseconds(900));
  drip.join();
  idle.send(kHealth);  // a connection without a byte is no slow request
  EXPECT_EQ(response_status(idle.read_until("}")), 200);
}

TEST(Connections, AnIdleOneIsClosedWithoutAWord) {
  TestServer server({.timeouts = {.keep_alive_s = 1}});
  RawConnection fresh(server.port), used(server.port);
  used.send(kHealth);
  used.read_until("}");
  EXPECT_EQ(fresh.read_all(), "");
  EXPECT_EQ(used.read_all(), "");
}

TEST(Connections, LengthsThatDisagreeAreRefused) {
  TestServer server;
  const auto post = [&](const std::string& fields) {
    return answer(server.port, "POST /tokenize HTTP/1.1\r\n" + fields + "\r\n0\r\n\r\nGET /health HTTP/1.1\r\n\r\n");
  };
  for (const char* fields :
       {"Content-Length: 5\r\nContent-Length: 50\r\n", "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n"}) {
    const std::string response = post(fields);
    EXPECT_EQ(response_status(response), 400) << fields;
    EXPECT_EQ(response.find("\"ok\""), response.npos) << "what followed was taken for a request: " << fields;
    EXPECT_NE(response.find("\"invalid_request_error\""), response.npos);
  }
}

TEST(Connections, LargeHeadsAreRefused) {
  TestServer server;
  std::string fields;
  for (int i = 0; i < 9; ++i) fields += "X-" + std::to_string(i) + ": " + std::string(7500, 'a') + "\r\n";
  EXPECT_EQ(response_status(answer(server.port, "GET /health HTTP/1.1\r\n" + fields + "\r\n")), 431);
  EXPECT_EQ(response_status(answer(server.port, "GET /health HTTP/1.1\r\nX: " + std::string(70'000, 'a') + "\r\n\r\n")),
            431);
  EXPECT_EQ(response_status(answer(server.port, "GET /" + std::string(70'000, 'a'))), 414);
  fields.resize(fields.size() / 9 * 8);  // 60 KB are accepted
  EXPECT_EQ(response_status(answer(server.port, "GET /health HTTP/1.1\r\nConnection: close\r\n" + fields + "\r\n")),
            200);
}

TEST(Connections, PipelinedRequestsAreAnsweredInOrder) {
  TestServer server;
  RawConnection connection(server.port);
  std::string requests;
  for (char c = 'a'; c <= 'j'; ++c) {
    requests += post_text("/tokenize", std::string(R"({"prompt": ")") + c + "\"}");
    requests += "GET /nothing HTTP/1.1\r\n\r\n";  // answered without a worker
  }
  requests += "GET /health HTTP/1.1\r\nConnection: close\r\n\r\nGET /health";
  connection.send(requests);
  const std::string answers = connection.read_all();
  size_t at = 0;
  for (char c = 'a'; c <= 'j'; ++c) {
    at = answers.find('[' + std::to_string(int{c}) + ']', at);
    ASSERT_NE(at, answers.npos) << c << ": " << answers;
    at = answers.find("unknown_url", at);
    ASSERT_NE(at, answers.npos) << c;
  }
  EXPECT_NE(answers.find("\"ok\"", at), answers.npos);
}

TEST(Connections, ABodyIsAskedForOnceItsHeadIsAccepted) {
  TestServer server({.api_key = "secret"});
  const std::string body = R"({"prompt": "a"})";
  const std::string head =
      "POST /tokenize HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: " + std::to_string(body.size()) + "\r\n";
  RawConnection accepted(server.port);
  accepted.send(head + "Authorization: Bearer secret\r\n\r\n");
  EXPECT_EQ(accepted.read_until("\r\n\r\n"), "HTTP/1.1 100 Continue\r\n\r\n");
  accepted.send(body);
  const std::string response = accepted.read_until("}");
  EXPECT_EQ(response_status(response), 200);
  EXPECT_NE(response.find("[97]"), response.npos);
  EXPECT_EQ(response_status(answer(server.port, head + "\r\n")), 401);  // the server does not wait for its body
  EXPECT_EQ(response_status(answer(server.port,
                                   "POST /tokenize HTTP/1.1\r\nAuthorization: Bearer secret\r\n"
                                   "Expect: 100-continue\r\nContent-Length: 999999999\r\n\r\n")),
            413);
}

TEST(Connections, ChunkedBodiesAreRead) {
  TestServer server;
  EXPECT_NE(answer(server.port,
                   "POST /tokenize HTTP/1.1\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n"
                   "8\r\n{\"prompt\r\n7\r\n\": \"a\"}\r\n0\r\n\r\n")
                .find("[97]"),
            std::string::npos);
}

TEST(Connections, OfTooManyTheLongestIdleMakeRoom) {
  TestServer server({.max_connections = 4});
  RawConnection oldest(server.port), old(server.port);
  for (RawConnection* connection : {&oldest, &old}) {
    connection->send(kHealth);
    connection->read_until("}");
    server.server.wait_until_idle();  // the answer arrives before the server counts the connection as idle
  }
  std::vector<std::unique_ptr<RawConnection>> more;
  for (int i = 0; i < 3; ++i) {
    more.push_back(std::make_unique<RawConnection>(server.port));
    more.back()->send(kHealth);
    EXPECT_EQ(response_status(more.back()->read_until("}")), 200);
  }
  EXPECT_EQ(oldest.read_all(), "");
  old.send(kHealth);  // no more connections are closed than needed
  EXPECT_EQ(response_status(old.read_until("}")), 200);
}

// A server with room for two connections.
class FullServer : public ::testing::Test {
 protected:
  void expect_turned_away(const std::string& response) {
    EXPECT_EQ(response_status(response), 503) << response;
    EXPECT_NE(response.find("Retry-After: 1\r\n"), response.npos) << response;
    EXPECT_NE(response.find("max_connections"), response.npos) << response;
  }
  static void begin(RawConnection& connection) { connection.send("GET /health HTTP/1.1\r\n"); }

  TestServer server_{{.max_connections = 2}};
};

TEST_F(FullServer, ARequestTooManyIsToldWhenToComeBack) {
  RawConnection one(server_.port), two(server_.port);
  begin(one);
  begin(two);
  for (int i = 0; i < 300; ++i) expect_turned_away(answer(server_.port, i % 2 == 0 ? kHealth : kTokenize));
  one.send("Connection: close\r\n\r\n");
  EXPECT_EQ(response_status(one.read_all()), 200);
  EXPECT_TRUE(healthy(server_.port));
  two.send("\r\n");
  EXPECT_EQ(response_status(two.read_until("}")), 200);
}

TEST_F(FullServer, ASilentConnectionTooManyIsToldAfterASecond) {
  RawConnection one(server_.port), two(server_.port);
  begin(one);
  begin(two);
  std::vector<std::unique_ptr<RawConnection>> silent;
  for (int i = 0; i < 200; ++i) silent.push_back(std::make_unique<RawConnection>(server_.port));
  for (const auto& connection : silent) expect_turned_away(connection->read_all());
}

TEST_F(FullServer, ASilentConnectionMakesRoomForARequest) {
  RawConnection one(server_.port), two(server_.port);
  std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  EXPECT_TRUE(healthy(server_.port));
  expect_turned_away(one.read_all());
  two.send(kHealth);
  EXPECT_EQ(response_status(two.read_until("}")), 200);
}

TEST_F(FullServer, AConnectionTooManyIsServedOnceThereIsRoom) {
  RawConnection one(server_.port);
  auto two = std::make_unique<RawConnection>(server_.port);
  begin(one);
  begin(*two);
  RawConnection waiting(server_.port);
  waiting.send("GET /health HTTP/1.1\r\nX: ");
  two.reset();
  while (!healthy(server_.port)) std::this_thread::yield();  // until the server has noticed that one is gone
  waiting.send("y\r\nConnection: close\r\n\r\n");
  EXPECT_EQ(response_status(waiting.read_all()), 200);
}

TEST(Connections, UnfinishedRequestsShareABoundedMemory) {
  TestServer server({.max_body_bytes = 1 << 20, .max_buffered_bytes = 4 << 20});
  std::vector<std::unique_ptr<RawConnection>> greedy;
  for (int i = 0; i < 8; ++i) {
    greedy.push_back(std::make_unique<RawConnection>(server.port));
    greedy.back()->send("POST /tokenize HTTP/1.1\r\nContent-Length: 1000000\r\n\r\n" + std::string(900'000, ' '));
  }
  EXPECT_TRUE(healthy(server.port));
  int refused = 0;
  for (auto& connection : greedy) {
    connection->send(std::string(99'985, ' ').append(R"({"prompt": "a"})"));
    const std::string response = connection->read_until("}");
    refused += response_status(response) != 200;  // status 503, or a connection that has been closed
    EXPECT_TRUE(response.empty() || response_status(response) == 200 || response_status(response) == 503) << response;
  }
  EXPECT_GE(refused, 2);
  EXPECT_LE(refused, 7);
}

TEST(Connections, WithoutFreeDescriptorsIdleOnesMakeRoomAndNewOnesWait) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "UBSan opens a pipe to look at a virtual table, and reports an invalid one if that fails";
#endif
  TestServer server;
  RawConnection idle(server.port);
  idle.send(kHealth);
  idle.read_until("}");
  const int first_socket = ::socket(AF_INET, SOCK_STREAM, 0), second_socket = ::socket(AF_INET, SOCK_STREAM, 0);
  rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  rlimit tight = before;
  tight.rlim_cur = 256;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &tight), 0);
  std::vector<int> files;
  for (int file = 0; file >= 0;) {
    file = ::open("/dev/null", O_RDONLY);
    if (file >= 0) files.push_back(file);
  }
  RawConnection first(server.port, first_socket);
  first.send(kHealth + "GET /health");  // so that it is not idle
  const std::string answer_of_first = first.read_until("}");
  RawConnection second(server.port, second_socket);
  second.send(kHealth);
  for (const int file : files) ::close(file);
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(response_status(answer_of_first), 200);
  EXPECT_EQ(idle.read_all(), "");
  EXPECT_EQ(response_status(second.read_until("}")), 200);
}

TEST(Connections, GarbageHarmsNobody) {
  TestServer server;
  std::mt19937 random(3);
  const std::string seed = kTokenize + kHealth;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = seed;
    if (i % 3 == 0) {
      bytes.assign(1 + random() % 2000, ' ');
      for (char& byte : bytes) byte = static_cast<char>(random());
    } else {
      for (int k = 0; k < 4; ++k) bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    RawConnection connection(server.port);
    connection.send(bytes);
    if (i % 2 == 0) connection.close();
  }
  EXPECT_TRUE(healthy(server.port));
}

TEST(Connections, FormsAreNotTakenApart) {
  TestServer server;
  for (const char* type : {"multipart/form-data; boundary=json", "application/x-www-form-urlencoded", "text/plain"}) {
    EXPECT_EQ(server.client().Post("/tokenize", "a=b", type)->status, 415) << type;
  }
  for (const char* type : {"application/json; charset=utf-8", "Application/JSON", "application/vnd.api+json"}) {
    EXPECT_EQ(server.client().Post("/tokenize", R"({"prompt": "a"})", type)->status, 200) << type;
  }
}

}  // namespace
}  // namespace smartkv::test

// The text of responses, and what a writer sends to its client.
#include "server/http/response_writer.h"

#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <stdexcept>

#include "server/openai/error.h"

namespace smartkv::http {
namespace {

TEST(Response, TextHasTheLengthOfTheBody) {
  Response response;
  response.content_type = "text/plain";
  response.id = "cmpl-1";
  response.add_header("A", "b");
  response.body = "hello";
  EXPECT_EQ(response.text(false, 0),
            "HTTP/1.1 200 OK\r\nA: b\r\nX-Request-Id: cmpl-1\r\nContent-Type: text/plain\r\nContent-Length: 5\r\n"
            "Connection: close\r\n\r\nhello");
}

TEST(Response, TextForHeadHasNoBody) {
  Response response{.status = 404, .content_type = "text/plain", .id = {}, .fields = {}, .body = "hello"};
  EXPECT_EQ(response.text(true, 75),
            "HTTP/1.1 404 Not Found\r\nContent-Type: text/plain\r\nContent-Length: 5\r\nConnection: keep-alive\r\n"
            "Keep-Alive: timeout=75, max=1000000\r\n\r\n");
}

TEST(Response, ThatHasNoContentHasNoLength) {
  const Response response{.status = 204, .content_type = {}, .id = {}, .fields = {}, .body = {}};
  EXPECT_EQ(response.text(false, 0), "HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n");
}

TEST(Response, EmptyBodiesHaveALength) {
  EXPECT_EQ(Response().text(false, 0), "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
}

// A connection that has read a request, and its client.
class ResponseWriterTest : public ::testing::Test {
 protected:
  ResponseWriterTest() {
    const int type = SOCK_STREAM | SOCK_NONBLOCK;
    if (::socketpair(AF_UNIX, type, 0, sockets_.data()) != 0) throw std::runtime_error("socketpair");
  }
  ~ResponseWriterTest() override {
    for (const int socket : sockets_) ::close(socket);
  }

  std::unique_ptr<Connection> connection(std::string_view request) const {
    auto connection = std::make_unique<Connection>(sockets_[0], RequestLimits(), 1, nullptr);
    connection->reader.read(request);
    return connection;
  }
  // Returns the bytes that the client has received since the last call.
  std::string received() const {
    std::string text;
    std::array<char, 4096> buffer;
    for (ssize_t n = 0; (n = ::recv(sockets_[1], buffer.data(), buffer.size(), 0)) > 0;) {
      text.append(buffer.data(), static_cast<size_t>(n));
    }
    return text;
  }

  std::array<int, 2> sockets_{};
};

TEST_F(ResponseWriterTest, SendsAWholeResponseAtTheEnd) {
  const auto served = connection("GET / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.body = "hello";
  EXPECT_EQ(received(), "");
  EXPECT_TRUE(writer.finish());
  EXPECT_EQ(received(), writer.text(false, 75));
}

TEST_F(ResponseWriterTest, ClosesIfTheClientAsksForIt) {
  const auto served = connection("GET / HTTP/1.1\r\nConnection: close\r\n\r\n");
  ResponseWriter writer(*served, 75);
  EXPECT_FALSE(writer.finish());
  EXPECT_EQ(received(), writer.text(false, 0));
}

TEST_F(ResponseWriterTest, AnswersHeadWithoutABody) {
  const auto served = connection("HEAD / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.body = "hello";
  EXPECT_TRUE(writer.finish());
  EXPECT_EQ(received(), writer.text(true, 75));
}

TEST_F(ResponseWriterTest, StreamsInChunks) {
  const auto served = connection("GET / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.begin_stream();
  EXPECT_EQ(received(), writer.head("Transfer-Encoding: chunked\r\n", 75));
  EXPECT_TRUE(writer.write("hello, this is a text"));
  EXPECT_EQ(received(), "15\r\nhello, this is a text\r\n");
  EXPECT_TRUE(writer.finish());
  EXPECT_EQ(received(), "0\r\n\r\n");
}

TEST_F(ResponseWriterTest, OldClientsGetNoChunks) {
  const auto served = connection("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.begin_stream();
  EXPECT_EQ(received(), writer.head("", 0));
  EXPECT_TRUE(writer.write("hello"));
  EXPECT_FALSE(writer.finish());
  EXPECT_EQ(received(), "hello");
}

TEST_F(ResponseWriterTest, AStreamThatFailsHasNoLastChunk) {
  const auto served = connection("GET / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.begin_stream();
  writer.write("hello");
  received();
  writer.status = 500;
  EXPECT_FALSE(writer.finish());
  EXPECT_EQ(received(), "");
}

TEST_F(ResponseWriterTest, NoticesThatTheClientHasLeft) {
  const auto served = connection("GET / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.begin_stream();
  EXPECT_FALSE(writer.client_left());
  ::shutdown(sockets_[1], SHUT_WR);
  EXPECT_TRUE(writer.client_left());
  EXPECT_FALSE(writer.write("hello"));
}

TEST_F(ResponseWriterTest, GivesUpOnAClientThatReadsNothing) {
  const auto served = connection("GET / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.begin_stream();
  EXPECT_FALSE(writer.write(std::string(4 << 20, 'a')));  // more than the sockets' buffers hold
}

// The client of a whole response may send its next request at once, so the key's place is free by then.
TEST_F(ResponseWriterTest, AWholeResponseEndsTheLeaseFirst) {
  const auto now = KeyAccount::Clock::now();
  const auto account = std::make_shared<KeyAccount>("alice", KeyLimits{.concurrent_requests = 1}, now);
  const auto served = connection("GET / HTTP/1.1\r\n\r\n");
  ResponseWriter writer(*served, 75);
  writer.lease = std::make_unique<KeyLease>(account);
  EXPECT_THROW(account->begin(now), openai::ApiError);
  writer.finish();
  EXPECT_NO_THROW(account->begin(now));
  ResponseWriter stream(*served, 75);
  account->end();
  stream.lease = std::make_unique<KeyLease>(account);
  stream.begin_stream();
  stream.finish();
  EXPECT_THROW(account->begin(now), openai::ApiError);  // a stream's lease ends with its writer
}

}  // namespace
}  // namespace smartkv::http

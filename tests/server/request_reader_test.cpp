// Where a request ends in a stream of bytes, and which bytes are no request.
#include "server/http/request_reader.h"

#include <gtest/gtest.h>

#include <random>

#include "server/openai/error.h"

namespace smartkv::http {
namespace {

constexpr RequestLimits kLimits = {.head_bytes = 2000, .line_bytes = 500, .fields = 10, .body_bytes = 100};

// Reads `bytes` in pieces of `step`. Bytes behind the request go to `rest`.
RequestReader read(std::string_view bytes, size_t step = 1 << 20, std::string* rest = nullptr) {
  RequestReader reader(kLimits);
  while (!bytes.empty() && !reader.done()) {
    const std::string_view piece = bytes.substr(0, step);
    size_t taken = 0;
    while (taken < piece.size() && !reader.done()) taken += reader.read(piece.substr(taken));
    bytes.remove_prefix(taken);
  }
  if (rest != nullptr) *rest = bytes;
  return reader;
}

int status_of(std::string_view bytes) {
  try {
    return read(bytes).done() ? 200 : 100;  // 100: more bytes must come
  } catch (const openai::ApiError& error) {
    return error.status;
  }
}

std::string post(const std::string& fields, const std::string& body) {
  return "POST /x HTTP/1.1\r\n" + fields + "\r\n" + body;
}

TEST(RequestReader, ReadsPiecesOfAnySize) {
  const std::string bytes =
      "\r\nPOST /a%20b?c=d HTTP/1.1\r\nHost: x\r\nX-Empty:\r\nX-Twice: a\r\nx-twice:  b \r\n"
      "Content-Length: 5\r\n\r\nhelloGET /";
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, bytes.size()}) {
    std::string rest;
    const RequestReader reader = read(bytes, step, &rest);
    ASSERT_TRUE(reader.done()) << step;
    EXPECT_EQ(rest, "GET /") << step;
    const Request& request = reader.request();
    EXPECT_EQ(request.method, "POST");
    EXPECT_EQ(request.path, "/a b");
    EXPECT_EQ(request.query, "c=d");
    EXPECT_EQ(request.version, "HTTP/1.1");
    EXPECT_EQ(request.field("host"), "x");
    EXPECT_EQ(request.field("x-empty"), "");
    EXPECT_EQ(request.field("x-twice"), "a");
    EXPECT_EQ(request.fields.size(), 5u);
    EXPECT_EQ(request.fields[3], (std::pair<std::string, std::string>("x-twice", "b")));
    EXPECT_TRUE(request.keep_alive);
    EXPECT_EQ(request.content_length, 5);
    EXPECT_EQ(request.body, "hello");
  }
}

TEST(RequestReader, TakesTargetsApart) {
  const auto parts = [](const std::string& target) {
    const Request request = read("GET " + target + " HTTP/1.1\r\n\r\n").request();
    return request.path + " " + request.query;
  };
  EXPECT_EQ(parts("/"), "/ ");
  EXPECT_EQ(parts("/a?"), "/a ");
  EXPECT_EQ(parts("/a?b=c?d#e?f"), "/a b=c?d");
  EXPECT_EQ(parts("/a#b?c"), "/a ");
  EXPECT_EQ(parts("/%61%2fb%C3%A9%3f?%61"), "/a/b\xc3\xa9? %61");
  EXPECT_EQ(parts("/%6"), "/%6 ");
  EXPECT_EQ(parts("/%%3x%g1"), "/%%3x%g1 ");
  EXPECT_EQ(parts("http://x:80/a?b"), "/a b");
  EXPECT_EQ(parts("HTTPS://x?b"), "/ b");
  EXPECT_EQ(parts("*"), "* ");
}

TEST(RequestReader, TakesQueriesApart) {
  const auto parameters = [](const std::string& query) {
    return read("GET /?" + query + " HTTP/1.1\r\n\r\n").request().parameters();
  };
  using Parameters = std::vector<std::pair<std::string, std::string>>;
  EXPECT_EQ(parameters(""), Parameters());
  EXPECT_EQ(parameters("a=1"), (Parameters{{"a", "1"}}));
  EXPECT_EQ(parameters("a=1&a=2&b"), (Parameters{{"a", "1"}, {"a", "2"}, {"b", ""}}));
  EXPECT_EQ(parameters("&&=x&%61%3d=%26=%"), (Parameters{{"a=", "&=%"}}));
}

TEST(RequestReader, ReadsChunks) {
  const std::string bytes = post("Transfer-Encoding: chunked\r\n",
                                 "5\r\nhello\r\n00a;name=\"x\"\r\n, world...\r\n0\r\nTrailer: x\r\n\r\nGET");
  for (const size_t step : {size_t{1}, size_t{2}, size_t{3}, size_t{7}, bytes.size()}) {
    std::string rest;
    const RequestReader reader = read(bytes, step, &rest);
    ASSERT_TRUE(reader.done()) << step;
    EXPECT_EQ(rest, "GET");
    EXPECT_EQ(reader.request().body, "hello, world...");
    EXPECT_TRUE(reader.request().chunked);
    EXPECT_EQ(reader.request().content_length, std::nullopt);
  }
}

TEST(RequestReader, RefusesWhatCouldBeReadInTwoWays) {
  EXPECT_EQ(status_of(post("Content-Length: 2\r\nContent-Length: 2\r\n", "ab")), 200);
  EXPECT_EQ(status_of(post("Content-Length: 2\r\nContent-Length: 3\r\n", "abc")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 2, 2\r\n", "ab")), 400);
  EXPECT_EQ(status_of(post("Content-Length: +2\r\n", "ab")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 0x2\r\n", "ab")), 400);
  EXPECT_EQ(status_of(post("Content-Length:\r\n", "ab")), 400);
  EXPECT_EQ(status_of(post("Content-Length: 2\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "0\r\n\r\n")), 400);
  EXPECT_EQ(status_of(post("Transfer-Encoding: gzip, chunked\r\n", "0\r\n\r\n")), 501);
  EXPECT_EQ(status_of("POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"), 400);
  EXPECT_EQ(status_of(post("Content-Length : 2\r\n", "ab")), 400);
  EXPECT_EQ(status_of(post("A: b\r\n continued\r\n", "")), 400);
  EXPECT_EQ(status_of(post("Host: a\r\nHost: b\r\n", "")), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\n\n"), 400);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\rHost: x\r\n\r\n"), 400);
  EXPECT_EQ(status_of(std::string("GET /\0 HTTP/1.1\r\n\r\n", 20)), 400);
  for (const char* chunks : {"\r\n", "x\r\n", "5x\r\n", "-1\r\n", "1\r\nab", "1\r\na\n", "1\nab", "0\r\nx\n",
                             "0\r\n\rx", "10000000000000000\r\n"}) {
    EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", chunks)), 400) << chunks;
  }
}

TEST(RequestReader, RefusesWhatIsNoRequest) {
  for (const char* bytes : {"nonsense\r\n\r\n", "GET\r\n\r\n", "GET /\r\n\r\n", "GET / HTTP/9.9\r\n\r\n",
                            "GET  HTTP/1.1\r\n\r\n", "GET / x HTTP/1.1\r\n\r\n", "G(T / HTTP/1.1\r\n\r\n",
                            "GET / HTTP/1.1\r\nno colon\r\n\r\n", "GET / HTTP/1.1\r\n: x\r\n\r\n", "\x16\x03\x01"}) {
    EXPECT_EQ(status_of(bytes), 400) << bytes;
  }
  EXPECT_EQ(status_of(post("Expect: more\r\n", "")), 417);
}

TEST(RequestReader, HoldsNoMoreThanItsLimits) {
  EXPECT_EQ(status_of("GET /" + std::string(500, 'a')), 414);
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\nA: " + std::string(500, 'a')), 431);
  std::string fields;
  for (int i = 0; i < 11; ++i) fields += "A: b\r\n";
  EXPECT_EQ(status_of(post(fields, "")), 431);
  fields = "";
  for (int i = 0; i < 6; ++i) fields += "A: " + std::string(400, 'a') + "\r\n";
  EXPECT_EQ(status_of("GET / HTTP/1.1\r\n" + fields), 431);
  EXPECT_EQ(status_of(post("Content-Length: 100\r\n", std::string(100, 'a'))), 200);
  EXPECT_EQ(status_of(post("Content-Length: 101\r\n", "")), 413);
  EXPECT_EQ(status_of(post("Content-Length: 99999999999999999999999\r\n", "")), 413);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "32\r\n" + std::string(50, 'a') + "\r\n33\r\n")), 413);
  EXPECT_EQ(status_of(post("Transfer-Encoding: chunked\r\n", "1;" + std::string(2001, 'a'))), 431);
  RequestReader reader(kLimits);
  for (int i = 0; i < 1000; ++i) reader.read("\r\n");  // empty lines before a request take no memory
  EXPECT_FALSE(reader.begun());
  EXPECT_LT(reader.bytes(), 64);
}

TEST(RequestReader, GivesItsMemoryBack) {
  const std::string fields = "A: " + std::string(400, 'a') + "\r\nContent-Length: 100\r\n";
  RequestReader reader = read(post(fields, std::string(100, 'a')));
  EXPECT_GT(reader.bytes(), 500);
  reader.reset();
  EXPECT_LT(reader.bytes(), 64);
  EXPECT_FALSE(reader.begun());
}

TEST(RequestReader, KnowsWhatTheConnectionIsForAfterwards) {
  const auto keeps = [](const std::string& head) { return read(head + "\r\n").request().keep_alive; };
  EXPECT_TRUE(keeps("GET / HTTP/1.1\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.1\r\nConnection: foo, Close\r\n"));
  EXPECT_FALSE(keeps("GET / HTTP/1.0\r\n"));
  EXPECT_TRUE(keeps("GET / HTTP/1.0\r\nConnection: keep-alive\r\n"));
  EXPECT_TRUE(read(post("Expect: 100-Continue\r\nContent-Length: 1\r\n", "")).request().expects_continue);
}

// Whatever the bytes: no crash, no more memory than the limits, and the same verdict however they are cut.
TEST(RequestReader, SurvivesGarbage) {
  const std::string seed =
      "POST /v1 HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nContent-Length: 9\r\n"
      "Connection: close\r\n\r\n5;a=b\r\nhello\r\n0\r\nT: x\r\n\r\n";
  std::mt19937 random(7);
  const auto verdict = [](std::string_view bytes, size_t step) {
    try {
      std::string rest;
      const RequestReader reader = read(bytes, step, &rest);
      EXPECT_LT(reader.bytes(), 2 * (kLimits.head_bytes + kLimits.body_bytes));
      const Request& request = reader.request();
      return (reader.done() ? "done " : "open ") + request.method + request.path + '|' + request.body + '|' + rest;
    } catch (const openai::ApiError& error) {
      return std::to_string(error.status) + error.what();
    }
  };
  for (int i = 0; i < 5000; ++i) {
    std::string bytes = seed;
    if (i % 2 == 0) bytes.erase(bytes.find("Content-Length"), 19);
    const int edits = static_cast<int>(random() % 4);
    for (int k = 0; k < edits; ++k) {
      const size_t at = random() % bytes.size();
      switch (random() % 3) {
        case 0: bytes[at] = static_cast<char>(random()); break;
        case 1: bytes.erase(at, 1 + random() % 4); break;
        default: bytes.insert(at, bytes.substr(random() % bytes.size(), random() % 12)); break;
      }
      if (bytes.empty()) bytes = "x";
    }
    EXPECT_EQ(verdict(bytes, 1), verdict(bytes, bytes.size())) << bytes;
  }
  for (int i = 0; i < 2000; ++i) {
    std::string bytes(random() % 300, ' ');
    for (char& byte : bytes) byte = static_cast<char>(random());
    verdict(bytes, 1 + random() % 9);
  }
}

}  // namespace
}  // namespace smartkv::http

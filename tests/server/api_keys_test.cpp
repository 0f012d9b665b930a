// Several API keys: their file, and what each key may use.
#include "server/http/api_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fstream>

#include "engine/log.h"
#include "tests/server/test_server.h"

namespace smartkv::test {
namespace {

using http::KeyAccount;
using http::KeyFileError;
using http::KeyLimits;
using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

const std::string kAlice = "alice-0123456789abcdef", kBob = "bob-0123456789abcdef", kCarol = "carol-0123456789abc";
const KeyAccount::Clock::time_point kStart;

std::string key_file_error(const std::string& text) {
  try {
    http::parse_api_keys(text, "keys.json");
  } catch (const KeyFileError& error) {
    return error.what();
  }
  return "";
}

std::string entry(const std::string& name, const std::string& key, const std::string& more = "") {
  return "\"" + name + "\": {\"key\": \"" + key + "\"" + more + "}";
}

// A file of keys that a test may change.
class KeyFile {
 public:
  explicit KeyFile(const std::string& entries) { write(entries); }
  void write(const std::string& entries) const { std::ofstream(path()) << "{" << entries << "}"; }
  std::string path() const {
    return ::testing::TempDir() + ::testing::UnitTest::GetInstance()->current_test_info()->name() + ".json";
  }
};

httplib::Headers bearer(const std::string& key) { return {{"Authorization", "Bearer " + key}}; }

int status_with(const ServedEngine& server, const std::string& key) {
  return server.client().Get("/v1/models", bearer(key))->status;
}

httplib::Result complete(const ServedEngine& server, const std::string& key,
                         const std::string& body = R"({"prompt": "abc"})") {
  return server.client().Post("/v1/completions", bearer(key), body, "application/json");
}

TEST(KeyFileTest, ReadsNamesKeysAndLimits) {
  const auto keys =
      http::parse_api_keys("{ // comments\n" + entry("alice", kAlice, R"(, "concurrent_requests": 2)") + "," +
                               entry("bob", kBob, R"(, "tokens_per_minute": 600, "kv_bytes": 9)") + "}",
                           "keys.json");
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].name, "alice");
  EXPECT_EQ(keys[0].key, kAlice);
  EXPECT_EQ(keys[0].limits.concurrent_requests, 2);
  EXPECT_EQ(keys[0].limits.tokens_per_minute, 0);
  EXPECT_EQ(keys[1].limits.tokens_per_minute, 600);
  EXPECT_EQ(keys[1].limits.kv_bytes, 9);
}

TEST(KeyFileTest, ErrorsNameThePlaceAndNeverAKey) {
  const struct {
    std::string text, place, expected;
  } cases[] = {
      {"{\n  \"alice\": {\"key\": \"" + kAlice + "\"\n  \"x\": 1}}", "line 3", "JSON"},
      {"{\n  \"alice\": {\"key\": \"" + kAlice + "\n\"}}", "line 3", "JSON"},
      {"[]", "keys.json", "object of keys by name"},
      {"{}", "keys.json", "an empty one"},
      {"{\"a b\": {}}", "name 1", "letters, digits"},
      {"{\"alice\": \"" + kAlice + "\"}", "alice", "an object with \"key\""},
      {"{\"alice\": {}}", "alice", "\"key\""},
      {"{\"alice\": {\"" + kAlice + "\": 1}}", "alice: field 1", "tokens_per_minute"},
      {"{" + entry("alice", "short") + "}", "alice.key", "16 to 512"},
      {"{" + entry("alice", kAlice + " b") + "}", "alice.key", "visible ASCII"},
      {"{" + entry("alice", kAlice) + "," + entry("bob", kAlice) + "}", "bob.key", "alice"},
      {"{" + entry("alice", kAlice, ", \"tokens_per_minute\": 0") + "}", "alice.tokens_per_minute", "found 0"},
      {"{" + entry("alice", kAlice, ", \"concurrent_requests\": 1.5") + "}", "alice.concurrent_requests", "found 1.5"},
      {"{" + entry("alice", kAlice, ", \"concurrent_requests\": \"" + kBob + "\"") + "}", "concurrent_requests",
       "found string"},
  };
  for (const auto& [text, place, expected] : cases) {
    EXPECT_THAT(key_file_error(text), AllOf(HasSubstr("keys.json"), HasSubstr(place), HasSubstr(expected),
                                            Not(HasSubstr("0123456789")), Not(HasSubstr("short"))));
  }
  EXPECT_THROW(http::read_api_keys("/nonexistent/keys.json"), KeyFileError);
  EXPECT_THROW(http::read_api_keys(::testing::TempDir()), KeyFileError);
  const std::string pipe = ::testing::TempDir() + "keys_" + std::to_string(::getpid());
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THROW(http::read_api_keys(pipe), KeyFileError);  // the pipe has no writer
  ::unlink(pipe.c_str());
}

TEST(KeyAccountTest, BoundsRequestsAtOnce) {
  KeyAccount account("alice", {.concurrent_requests = 2}, kStart);
  account.begin(kStart);
  account.begin(kStart);
  EXPECT_THROW(account.begin(kStart), openai::ApiError);
  account.end();
  account.begin(kStart);
  EXPECT_THAT(account.headers(kStart), ::testing::ElementsAre(std::pair("x-ratelimit-limit-requests", "2"),
                                                              std::pair("x-ratelimit-remaining-requests", "0")));
}

TEST(KeyAccountTest, TokensComeBackAtTheirRate) {
  KeyAccount account("alice", {.tokens_per_minute = 60}, kStart);
  account.begin(kStart);
  account.charge(50, kStart);
  account.begin(kStart);  // ten tokens are left
  account.charge(30, kStart);
  try {
    account.begin(kStart);
    FAIL() << "the account is overdrawn by 20 tokens";
  } catch (const openai::ApiError& error) {
    EXPECT_EQ(error.status, 429);
    EXPECT_EQ(error.code, "rate_limit_exceeded");
    EXPECT_EQ(error.retry_after_s, 21);
    EXPECT_THAT(error.what(), AllOf(HasSubstr("alice"), HasSubstr("60 tokens per minute"), HasSubstr("21 s")));
  }
  EXPECT_THAT(account.headers(kStart), ::testing::ElementsAre(std::pair("x-ratelimit-limit-tokens", "60"),
                                                              std::pair("x-ratelimit-remaining-tokens", "0"),
                                                              std::pair("x-ratelimit-reset-tokens", "80s")));
  EXPECT_THROW(account.begin(kStart + seconds(20)), openai::ApiError);
  account.begin(kStart + seconds(21));
  EXPECT_THAT(account.headers(kStart + seconds(1000)),
              ::testing::Contains(std::pair("x-ratelimit-remaining-tokens", "60")));
}

TEST(KeyAccountTest, OtherLimitsKeepWhatWasUsed) {
  KeyAccount account("alice", {.concurrent_requests = 1, .tokens_per_minute = 60}, kStart);
  account.begin(kStart);
  account.charge(90, kStart);
  account.set_limits({.concurrent_requests = 2, .tokens_per_minute = 80}, kStart);
  EXPECT_THROW(account.begin(kStart), openai::ApiError);  // still overdrawn by 10
  account.set_limits({.concurrent_requests = 2, .tokens_per_minute = 100}, kStart);
  account.begin(kStart);
  EXPECT_THROW(account.begin(kStart), openai::ApiError);  // the first request is still running
}

TEST(ApiKeys, EachKeyOfTheFileServesAndNoOther) {
  const KeyFile file(entry("alice", kAlice) + "," + entry("bob", kBob));
  TestServer server({.api_key = "secret", .api_keys_file = file.path()});
  for (const std::string& key : {kAlice, kBob, std::string("secret")}) EXPECT_EQ(status_with(server, key), 200);
  for (const std::string& key : {kCarol, kAlice.substr(1), kAlice + "0", std::string("alice"), std::string()}) {
    EXPECT_EQ(status_with(server, key), 401) << key;
  }
  EXPECT_EQ(server.client().Get("/v1/models")->status, 401);
  EXPECT_EQ(server.client().Get("/health")->status, 200);
}

TEST(ApiKeys, RequestsAtOnceAreCountedToTheEndOfTheirStream) {
  const KeyFile file(entry("alice", kAlice, R"(, "concurrent_requests": 1)") + "," + entry("bob", kBob));
  TestServer server({.api_keys_file = file.path()});
  server.engine.hold_after(1);
  RawConnection stream(server.port);
  const std::string body = R"({"prompt": "abc", "stream": true})";
  stream.send(
      "POST /v1/completions HTTP/1.1\r\nConnection: close\r\nContent-Type: application/json\r\nAuthorization: Bearer " +
      kAlice + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_THAT(stream.read_until("data: "), HasSubstr("x-ratelimit-remaining-requests: 0"));
  const auto refused = complete(server, kAlice);
  EXPECT_EQ(refused->status, 429);
  EXPECT_EQ(refused->get_header_value("Retry-After"), "1");
  EXPECT_EQ(refused->get_header_value("x-ratelimit-limit-requests"), "1");
  EXPECT_THAT(refused->body, AllOf(HasSubstr("rate_limit_exceeded"), HasSubstr("alice"), Not(HasSubstr(kAlice))));
  EXPECT_EQ(status_with(server, kAlice), 200);  // requests that compute nothing are free
  server.engine.release();
  stream.read_all();
  EXPECT_EQ(complete(server, kAlice)->status, 200);
  EXPECT_EQ(complete(server, kAlice)->status, 200);  // on new connections: ended requests hold no place
  EXPECT_FALSE(complete(server, kBob)->has_header("x-ratelimit-limit-requests"));
}

TEST(ApiKeys, TokensOfPromptsAndOutputsCount) {
  const KeyFile file(entry("alice", kAlice, R"(, "tokens_per_minute": 10)"));
  TestServer server({.api_keys_file = file.path()});
  const auto first = complete(server, kAlice);  // 3 tokens of prompt, 6 of output
  EXPECT_EQ(first->status, 200);
  EXPECT_EQ(first->get_header_value("x-ratelimit-remaining-tokens"), "10");
  const auto second = complete(server, kAlice);
  EXPECT_EQ(second->status, 200);
  EXPECT_LT(std::stoi(second->get_header_value("x-ratelimit-remaining-tokens")), 5);
  const auto third = complete(server, kAlice);
  EXPECT_EQ(third->status, 429);
  EXPECT_GT(std::stoi(third->get_header_value("Retry-After")), 30);  // 8 overdrawn, at 10 a minute
  EXPECT_EQ(third->get_header_value("x-ratelimit-remaining-tokens"), "0");
}

TEST(ApiKeys, StreamsCountAsMuch) {
  const KeyFile file(entry("alice", kAlice, R"(, "tokens_per_minute": 10)"));
  TestServer server({.api_keys_file = file.path()});
  EXPECT_EQ(complete(server, kAlice, R"({"prompt": "abc", "stream": true})")->status, 200);
  EXPECT_LT(std::stoi(complete(server, kAlice)->get_header_value("x-ratelimit-remaining-tokens")), 5);
}

TEST(ApiKeys, ReloadingChangesKeysAndKeepsAccounts) {
  const KeyFile file(entry("alice", kAlice, R"(, "tokens_per_minute": 5)") + "," + entry("bob", kBob));
  TestServer server({.api_keys_file = file.path()});
  EXPECT_EQ(complete(server, kAlice)->status, 200);
  file.write(entry("alice", kCarol, R"(, "tokens_per_minute": 5)"));
  server.server.reload();
  EXPECT_EQ(status_with(server, kAlice), 401);
  EXPECT_EQ(status_with(server, kBob), 401);
  EXPECT_EQ(status_with(server, kCarol), 200);
  EXPECT_EQ(complete(server, kCarol)->status, 429) << "a new key of an old name does not wipe out what was used";
  file.write("broken");
  ::testing::internal::CaptureStderr();
  server.server.reload();
  flush_log(std::chrono::seconds(10));  // other tests may have moved the log to a thread
  EXPECT_THAT(::testing::internal::GetCapturedStderr(), HasSubstr("expected JSON"));
  EXPECT_EQ(status_with(server, kCarol), 200);
}

TEST(ApiKeys, AFileThatCannotBeUsedIsAnErrorAtStart) {
  EXPECT_THROW(TestServer({.api_keys_file = "/nonexistent/keys.json"}), KeyFileError);
}

}  // namespace
}  // namespace smartkv::test

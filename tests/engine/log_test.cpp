#include "engine/log.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <regex>
#include <string>

#include <nlohmann/json.hpp>

#include "engine/log_line.h"

namespace smartkv {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

std::string text_line(std::string_view message, std::initializer_list<LogField> fields = {}) {
  return std::string(LogLine(LogFormat::kText, message, fields).text());
}
std::string json_line(std::string_view message, std::initializer_list<LogField> fields = {}) {
  return "{" + std::string(LogLine(LogFormat::kJson, message, fields).text());
}

TEST(LogLine, TimesAreUtcInIso8601) {
  ::testing::internal::CaptureStderr();
  log_error("hello");
  const std::string line = ::testing::internal::GetCapturedStderr();
  EXPECT_TRUE(std::regex_match(line, std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z error hello\n)"))) << line;
  std::tm utc{};
  ASSERT_NE(::strptime(line.c_str(), "%Y-%m-%dT%H:%M:%S", &utc), nullptr);
  EXPECT_NEAR(static_cast<double>(::timegm(&utc)), static_cast<double>(std::time(nullptr)), 60);
}

TEST(LogLine, JsonHasTimeAndLevel) {
  ::testing::internal::CaptureStderr();
  set_log_format(LogFormat::kJson);
  log_error("hello");
  set_log_format(LogFormat::kText);
  const auto entry = nlohmann::json::parse(::testing::internal::GetCapturedStderr());
  EXPECT_TRUE(
      std::regex_match(entry["time"].get<std::string>(), std::regex(R"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z)")));
  EXPECT_EQ(entry["level"], "error");
  EXPECT_EQ(entry["message"], "hello");
}

// Clients choose paths, so a message may contain anything.
TEST(LogLine, NothingInAMessageBeginsALine) {
  const std::string forged =
      "GET /a\n2026-01-01T00:00:00.000Z error forged\r\x1b[31m\x7f\u0085\u2028\u202e\u009b" + std::string(1, '\0');
  EXPECT_EQ(text_line(forged),
            "GET /a\\n2026-01-01T00:00:00.000Z error forged\\r\\u001b[31m\\u007f\\u0085\\u2028\\u202e\\u009b\\u0000\n");
  EXPECT_EQ(text_line("request", {{"path", "/a b\n\"c\" status=200"}}),
            "request path=\"/a b\\n\\\"c\\\" status=200\"\n");
  EXPECT_EQ(text_line("request", {{"path", "/ä"}, {"id", ""}}), "request path=\"/ä\" id=\"\"\n");
  EXPECT_EQ(text_line("bad \xff\xc0\xaf\xed\xa0\x80"), "bad \ufffd\ufffd\ufffd\ufffd\ufffd\ufffd\n");
}

TEST(LogLine, JsonReadsBack) {
  const std::string text = "a \"quote\", a \\ and\na line \x01 \xff end";
  const auto entry = nlohmann::json::parse(json_line(text, {{"path", text}, {"status", "200"}}));
  EXPECT_EQ(entry["message"], "a \"quote\", a \\ and\na line \x01 \ufffd end");
  EXPECT_EQ(entry["path"], entry["message"]);
  EXPECT_EQ(entry["status"], "200");
}

TEST(LogLine, LongTextsAreCut) {
  const std::string longest(100'000, '"');
  for (const std::string& line :
       {text_line(longest, {{"path", longest}, {"status", "200"}}),
        json_line(longest, {{"a", longest}, {"b", longest}, {"c", longest}, {"d", longest}, {"e", longest}})}) {
    EXPECT_LE(line.size(), 8 << 10);
    EXPECT_TRUE(line.ends_with('\n'));
    EXPECT_THAT(line, HasSubstr("..."));
  }
  EXPECT_THAT(text_line(longest, {{"path", longest}, {"status", "200"}}), HasSubstr(" status=200\n"));
  EXPECT_TRUE(
      nlohmann::json::accept(json_line(longest, {{"a", longest}, {"b", longest}, {"c", longest}, {"d", longest}})));
}

// Logs into a pipe that is not read, and exits with a code that says whether logging blocked.
[[noreturn]] void log_into_a_blocked_pipe(int* read_end) {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) std::_Exit(90);
  ::dup2(pipe[1], STDERR_FILENO);
  *read_end = pipe[0];
  log_in_background();
  const auto start = std::chrono::steady_clock::now();
  const std::string text(1000, 'x');
  for (int i = 0; i < 2000; ++i) log_error(text);
  if (lost_log_lines() == 0) std::_Exit(91);
  if (flush_log(milliseconds(10))) std::_Exit(92);
  if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) std::_Exit(93);
  // Once the pipe is read, the log continues and reports how many lines are missing.
  std::string seen;
  std::array<char, 65536> buffer{};
  const uint64_t lost = lost_log_lines();
  const std::string told = std::to_string(lost) + " log lines were lost";
  while (seen.find(told) == seen.npos) {
    pollfd fd{.fd = pipe[0], .events = POLLIN, .revents = 0};
    if (::poll(&fd, 1, 20'000) != 1) std::_Exit(94);
    seen.append(buffer.data(), static_cast<size_t>(::read(pipe[0], buffer.data(), buffer.size())));
  }
  log_error("afterwards");
  if (!flush_log(milliseconds(20'000))) std::_Exit(95);
  std::exit(0);
}

TEST(Log, ABlockedPipeHoldsNobodyUp) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  int read_end = -1;
  EXPECT_EXIT(log_into_a_blocked_pipe(&read_end), ::testing::ExitedWithCode(0), "");
}

// Exits while the logging thread is in a write() that never returns.
[[noreturn]] void exit_with_a_blocked_pipe() {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) std::_Exit(90);
  ::dup2(pipe[1], STDERR_FILENO);
  log_in_background();
  for (int i = 0; i < 2000; ++i) log_error(std::string(1000, 'x'));
  flush_log(milliseconds(10));
  std::exit(0);
}

TEST(Log, AProcessEndsWithABlockedPipe) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(exit_with_a_blocked_pipe(), ::testing::ExitedWithCode(0), "");
}

[[noreturn]] void log_to_a_reader_that_is_gone() {
  std::array<int, 2> pipe{};
  if (::pipe(pipe.data()) != 0) std::_Exit(90);
  ::dup2(pipe[1], STDERR_FILENO);
  ::close(pipe[0]);
  log_in_background();
  log_error("hello");
  std::exit(flush_log(milliseconds(20'000)) ? 0 : 91);
}

TEST(Log, AReaderThatIsGoneEndsNothing) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_EXIT(log_to_a_reader_that_is_gone(), ::testing::ExitedWithCode(0), "");
}

}  // namespace
}  // namespace smartkv

// When memory runs out, every allocation of the server fails in turn, and the server continues.
#include <atomic>

#include <gtest/gtest.h>

#include "engine/log.h"
#include "server/openai/json_body.h"
#include "tests/allocations.h"
#include "tests/server/test_server.h"

namespace {

// Counts allocations of threads that are not exempt. From number `first_failure` on, `failures` of them fail.
std::atomic<int64_t> allocations{0}, first_failure{0}, failures{0};
thread_local bool exempt = false;

bool is_to_fail() {
  if (exempt) return false;
  const int64_t number = allocations.fetch_add(1);
  return number >= first_failure && number - first_failure < failures;
}

}  // namespace

#ifdef __SANITIZE_ADDRESS__
// The constructor of nlohmann/json 3.11 from an initializer list leaks an object's members if memory for one of them is
// missing.
extern "C" const char* __lsan_default_suppressions() { return "leak:*basic_json*initializer_list*\n"; }
#endif

namespace smartkv::test {
namespace {

constexpr int64_t kForever = INT64_MAX;

// Makes allocations fail while it exists.
class Failing {
 public:
  Failing(int64_t first, int64_t count) {
    allocations = 0;
    first_failure = first;
    failures = count;
    allocation_fails = is_to_fail;
  }
  ~Failing() { allocation_fails = nullptr; }
  bool met() const { return allocations.load() > first_failure.load(); }
};

std::string nested(int depth) {
  std::string text = "[1, \"a string that is longer than the small ones\"]";
  for (int i = 0; i < depth; ++i)
    text = i % 2 == 0 ? R"({"a": {}, "key": )" + text + R"(, "b": [[], "c"]})" : "[[1], " + text + ", {\"d\": 2.5}]";
  return text;
}

TEST(OutOfMemory, JsonIsDestroyedWithoutMemory) {
  for (const int depth : {0, 1, 2, 5, 60}) {
    const std::string text = nested(depth);
    auto ordered = std::make_unique<nlohmann::ordered_json>(openai::parse_json(text));
    auto sorted = std::make_unique<nlohmann::json>(nlohmann::json::parse(text));
    const Failing failing(0, kForever);
    ordered.reset();
    sorted.reset();
    EXPECT_FALSE(failing.met());
  }
}

TEST(OutOfMemory, JsonIsComparedWithoutMemory) {
  constexpr const char* kText = "a text that is longer than the small ones";
  const nlohmann::ordered_json ordered = kText;
  const nlohmann::json sorted = kText, number = 1;
  const Failing failing(0, kForever);
  EXPECT_TRUE(ordered == kText && sorted == kText && ordered == "a text that is longer than the small ones");
  EXPECT_TRUE(ordered != "another text that is longer than the small ones" && sorted != "a" && number != kText);
  EXPECT_FALSE(failing.met());
}

TEST(OutOfMemory, DeepJsonIsDestroyedWithoutAStack) {
  nlohmann::ordered_json deep = 1;
  for (int i = 0; i < 1'000'000; ++i) {
    nlohmann::ordered_json outer = i % 2 == 0 ? nlohmann::ordered_json::array() : nlohmann::ordered_json::object();
    if (outer.is_array()) {
      outer.push_back(std::move(deep));
    } else {
      outer["k"] = std::move(deep);
    }
    deep = std::move(outer);
  }
}

TEST(OutOfMemory, ParsingFailsAtEachAllocation) {
  const std::string text = nested(8);
  for (int64_t n = 0;; ++n) {
    const Failing failing(n, 1);
    try {
      openai::parse_json(text);
      if (!failing.met()) {
        EXPECT_GT(n, 50);
        return;
      }
    } catch (const std::bad_alloc&) {
    }
  }
}

class OutOfMemoryServer : public ::testing::TestWithParam<const char*> {
 protected:
  static std::string request() {
    const std::string path = std::string(GetParam()).starts_with("{\"input") ? "/v1/responses" : "/v1/chat/completions";
    std::string text = post_text(path, GetParam());
    return text.insert(text.find("\r\n") + 2, "Connection: close\r\n");
  }
  std::string answer(const std::string& request) const {
    RawConnection connection(server_.port);
    connection.send(request);
    return connection.read_all();
  }

  TestServer server_{{.http_threads = 2}};
};

// The answer is a 200, possibly cut off, a 500 or a 503, or there is none and the connection is closed.
TEST_P(OutOfMemoryServer, EachAllocationMayFail) {
  exempt = true;
  const std::string text = request();
  ASSERT_TRUE(answer(text).starts_with("HTTP/1.1 200"));
  ::testing::internal::CaptureStderr();  // each failure logs a line
  std::map<std::string, int> seen;
  for (const int64_t count : {int64_t{1}, kForever}) {
    for (int64_t n = 0;; n += count == 1 ? 1 : 5) {
      const Failing failing(n, count);
      const std::string found = answer(text);
      seen[found.substr(0, 12)]++;
      if (!failing.met()) break;
      ASSERT_LT(n, 20'000);
    }
    server_.server.wait_until_idle();
    EXPECT_TRUE(answer(text).starts_with("HTTP/1.1 200"));
    EXPECT_TRUE(server_.engine.wait_for_live_streams(0));
  }
  ::testing::internal::GetCapturedStderr();
  for (const auto& [status, times] : seen) {
    EXPECT_TRUE(status == "HTTP/1.1 200" || status == "HTTP/1.1 500" || status == "HTTP/1.1 503" || status.empty())
        << status;
  }
  EXPECT_GT(seen["HTTP/1.1 503"], 50);
  exempt = false;
}

INSTANTIATE_TEST_SUITE_P(
    Requests, OutOfMemoryServer,
    ::testing::Values(
        R"({"messages": [{"role": "user", "content": [{"type": "text", "text": "hello, this is a text"}]}], "logprobs": true, "top_logprobs": 2})",
        R"({"messages": [{"role": "user", "content": "hello, this is a text"}], "stream": true, "n": 2, "stream_options": {"include_usage": true}})",
        R"({"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}]}], "stream": true, "text": {"format": {"type": "json_schema", "name": "n",
            "schema": {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}, "required": ["a"]}}}})"));

}  // namespace
}  // namespace smartkv::test

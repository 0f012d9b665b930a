// Options from environment variables. They override config file and preset, and the command line overrides them.
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "server/commands/environment.h"
#include "server/commands/options.h"
#include "tests/server/command_runner.h"

namespace smartkv {
namespace {

using test::Ran;
using test::run;
using ::testing::AllOf;
using ::testing::HasSubstr;

class Environment : public ::testing::Test {
 protected:
  ~Environment() override {
    for (const std::string& name : set_) ::unsetenv(name.c_str());
  }
  void set(const std::string& name, const std::string& value) {
    ::setenv(name.c_str(), value.c_str(), 1);
    set_.push_back(name);
  }
  static nlohmann::json config(std::vector<const char*> arguments = {}) {
    arguments.insert(arguments.begin(), {"serve", "--print-config"});
    const Ran ran = run(arguments);
    EXPECT_EQ(ran.code, kOk) << ran.error;
    return nlohmann::json::parse(ran.out);
  }

 private:
  std::vector<std::string> set_;
};

// Returns a value of the option that is not its default.
std::string other_value(const Option& option) {
  const nlohmann::ordered_json fallback = value_of(option, ServerOptions());
  if (!option.choices.empty())
    return std::string(option.choices.back() == fallback ? option.choices.front() : option.choices.back());
  if (option.name == "max_body_bytes") return "1MiB";  // max_buffered_bytes must hold two bodies
  if (option.name == "rope_scaling") return "yarn";
  if (fallback.is_number()) return option.bytes ? "1GiB" : std::to_string(fallback.get<int64_t>() + 1);
  if (!option.entry.empty()) return R"({"mine": "gate.safetensors"})";
  return "other";
}

TEST_F(Environment, SetsEveryOption) {
  for (const Option& option : option_table()) {
    if (option.name == "api_key") continue;  // its value is not printed
    const std::string name(option.name);
    const nlohmann::json before = config()[name];
    set(variable(name), other_value(option));
    EXPECT_NE(config()[name], before) << name;
    set(variable(name), "");  // counts as not set
    EXPECT_EQ(config()[name], before) << name;
  }
}

TEST_F(Environment, StandsBetweenFileAndCommandLine) {
  const std::filesystem::path file = std::filesystem::path(::testing::TempDir()) / "environment_test.json";
  std::ofstream(file) << R"({"port": 1, "max_queue": 2, "host": "10.0.0.1"})";
  set("SMARTKV_PORT", "11");
  set("SMARTKV_MAX_QUEUE", "12");
  nlohmann::json json = config({"--config", file.c_str(), "--port", "21"});
  EXPECT_EQ(json["port"], 21);
  EXPECT_EQ(json["max_queue"], 12);
  EXPECT_EQ(json["host"], "10.0.0.1");
  set("SMARTKV_CONFIG", file);
  EXPECT_EQ(config()["host"], "10.0.0.1");
  set("SMARTKV_PRESET", "low_memory");
  json = config();
  EXPECT_EQ(json["max_queue"], 12);
  EXPECT_EQ(json["kv_cache"], config({"--preset", "low_memory"})["kv_cache"]);
  std::filesystem::remove(file);
}

TEST_F(Environment, ErrorsNameTheVariable) {
  set("SMARTKV_PORT", "eighty");
  const Ran ran = run({"serve", "--print-config"});
  EXPECT_EQ(ran.code, kUsageError);
  EXPECT_THAT(ran.error,
              AllOf(HasSubstr("SMARTKV_PORT"), HasSubstr("expected an integer from 0 to 65535, found \"eighty\"")));
}

TEST_F(Environment, AnUnknownVariableIsNamedWithTheNearest) {
  EXPECT_TRUE(unknown_variables().empty());
  set("SMARTKV_PROT", "80");
  set("SMARTKV_CPU_LEVEL", "");
  const auto lines = unknown_variables();
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("SMARTKV_PROT"), HasSubstr("SMARTKV_PORT")));
  EXPECT_THAT(run({"serve", "--model", "/nowhere.gguf"}).error, HasSubstr("SMARTKV_PROT"));
}

// Kubernetes sets these variables in every container beside a service named "smartkv".
TEST_F(Environment, LinksToAServiceOfThatNameAreNoOptions) {
  set("SMARTKV_PORT", "tcp://10.96.0.7:80");
  set("SMARTKV_PORT_80_TCP", "tcp://10.96.0.7:80");
  set("SMARTKV_PORT_80_TCP_ADDR", "10.96.0.7");
  set("SMARTKV_SERVICE_HOST", "10.96.0.7");
  set("SMARTKV_SERVICE_PORT", "80");
  set("SMARTKV_SERVICE_PORT_HTTP", "80");
  EXPECT_EQ(config()["port"], 8080);
  EXPECT_TRUE(unknown_variables().empty());
}

TEST_F(Environment, ALineBreakAtTheEndIsNoPartOfAValue) {
  set("SMARTKV_CORS_ORIGIN", "https://example.org\r\n");
  EXPECT_EQ(config()["cors_origin"], "https://example.org");
  set("SMARTKV_CORS_ORIGIN", "\n");
  EXPECT_EQ(config()["cors_origin"], "");
}

TEST_F(Environment, ListsAreGivenByCommasOrSeveralTimes) {
  const auto names = [&](const std::vector<const char*>& arguments) { return config(arguments)["served_model_name"]; };
  EXPECT_EQ(names({"--served-model-name", "a,b", "--served-model-name", "c"}), nlohmann::json::array({"a", "b", "c"}));
  set("SMARTKV_SERVED_MODEL_NAME", "d,e");
  EXPECT_EQ(names({}), nlohmann::json::array({"d", "e"}));
  EXPECT_EQ(names({"--served-model-name", "a"}), nlohmann::json::array({"a"}));
  EXPECT_EQ(config({"--allowed-policies", "full", "--allowed-policies", "k8v8"})["allowed_policies"],
            nlohmann::json::array({"full", "k8v8"}));
}

TEST_F(Environment, GatesAreOneFileOrAnObject) {
  set("SMARTKV_GATES", "a=/a.safetensors");
  EXPECT_EQ(config()["gates"], (nlohmann::json{{"a", "/a.safetensors"}}));
  set("SMARTKV_GATES", R"({"a": "/a.safetensors", "b": "/b,c.safetensors"})");
  EXPECT_EQ(config()["gates"].size(), 2u);
  EXPECT_EQ(config({"--gate", "c=/c.safetensors"})["gates"].size(), 3u);
  set("SMARTKV_GATES", "{");
  EXPECT_EQ(run({"serve", "--print-config"}).code, kUsageError);
}

}  // namespace
}  // namespace smartkv

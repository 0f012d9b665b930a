// Presets, and the schema of config files.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "server/commands/command.h"
#include "server/commands/common.h"
#include "server/commands/config_schema.h"
#include "server/commands/presets.h"
#include "tests/server/command_runner.h"

namespace smartkv {
namespace {

using test::Ran;
using test::run;
using ::testing::AllOf;
using ::testing::HasSubstr;

std::string written(const std::string& text) {
  const std::string path = ::testing::TempDir() + "config_test.json";
  std::ofstream(path) << text;
  return path;
}

TEST(Presets, AreTheFilesInConfigsButTheDefault) {
  EXPECT_EQ(preset_names(), "gpu, laptop, long_context, low_memory, server");
  for (const ConfigPreset& preset : config_presets()) {
    std::ifstream file(std::filesystem::path(SMARTKV_SOURCE) / "configs" / preset.file);
    std::ostringstream text;
    text << file.rdbuf();
    EXPECT_EQ(preset.text(), text.str()) << preset.file;
    ServerOptions options;
    EXPECT_NO_THROW(apply_preset(preset.name(), &options)) << preset.file;
    EXPECT_NO_THROW(complete(&options)) << preset.file;
    EXPECT_TRUE(options.engine.model.path.empty()) << preset.file << ": a preset is for any model";
  }
}

TEST(Presets, StandBetweenTheConfigFileAndTheCommandLine) {
  const std::string file = written(R"({"max_sequences": 7, "max_queue": 9, "context_length": 11})");
  const Ran ran = run({"serve", "--config", file.c_str(), "--preset", "laptop", "--max-queue", "5", "--print-config"});
  ASSERT_EQ(ran.code, kOk) << ran.error;
  const auto config = nlohmann::json::parse(ran.out);
  EXPECT_EQ(config["context_length"], 11);  // from the file; the preset does not set it
  EXPECT_EQ(config["max_sequences"], 4);    // from the preset, which overrides the file
  EXPECT_EQ(config["max_queue"], 5);        // from the command line, which overrides both
  EXPECT_EQ(config["kv_cache_bytes"], int64_t{1} << 30);
}

TEST(Presets, AnUnknownOneIsRefusedWithTheNames) {
  const Ran ran = run({"serve", "--preset", "desktop", "--model", "m.gguf"});
  EXPECT_EQ(ran.code, kUsageError);
  EXPECT_THAT(ran.error, AllOf(HasSubstr("\"desktop\""), HasSubstr("gpu, laptop, long_context, low_memory, server")));
}

TEST(ConfigCommand, ChecksWhatNeedsNoModel) {
  const auto error_of = [](const std::string& text) {
    const Ran ran = run({"config", "check", written(text).c_str()});
    EXPECT_EQ(ran.code, text == "{}" ? kOk : kUsageError);
    return ran.error;
  };
  EXPECT_EQ(error_of("{}"), "");
  EXPECT_THAT(error_of(R"({"max_sequence": 1})"), HasSubstr("max_sequences"));
  EXPECT_THAT(error_of(R"({"sampling": {"temperature": -1}})"), HasSubstr("temperature"));
  EXPECT_THAT(error_of(R"({"model": "nowhere.gguf"})"), AllOf(HasSubstr("model"), HasSubstr("nowhere.gguf")));
  EXPECT_THAT(error_of(R"({"gates": {"a": "nowhere.st"}})"), HasSubstr("gates.a"));
  EXPECT_THAT(error_of(R"({"kv_cache": "ballanced"})"), AllOf(HasSubstr("kv_cache"), HasSubstr("balanced")));
  EXPECT_THAT(error_of(R"({"kv_cache": {"bits": 4}})"), HasSubstr("kv_cache"));
  EXPECT_THAT(error_of(R"({"speculative": {"method": "ngram", "tokens": 99}})"), HasSubstr("speculative.tokens"));
  EXPECT_THAT(error_of(R"({"allowed_policies": ["fool"]})"), HasSubstr("allowed_policies"));
  EXPECT_THAT(error_of(R"({"device": "cuda:0"})"), HasSubstr("device: expected cpu, "));
  EXPECT_THAT(error_of(R"({"backend": "torch", "weights": "int8"})"), HasSubstr("weights: expected auto, bf16 or f32"));
  EXPECT_THAT(error_of(R"({"tensor_parallel": 2})"),
              HasSubstr("tensor_parallel: expected 1 with backend native, found 2"));
  EXPECT_THAT(error_of(R"({"cuda_graphs": "on"})"),
              HasSubstr("cuda_graphs: expected auto or off on device cpu, found \"on\""));
  EXPECT_THAT(error_of(R"({"max_buffered_bytes": 1000})"), HasSubstr("max_buffered_bytes"));
  EXPECT_THAT(error_of(R"({"api_keys_file": "nowhere.keys"})"), HasSubstr("nowhere.keys"));
  EXPECT_THAT(error_of(R"({"tls_cert": "nowhere.pem", "tls_key": "k.pem"})"), HasSubstr("nowhere.pem"));
  EXPECT_THAT(error_of(R"({"tls_key": "k.pem"})"), HasSubstr("tls_key alone"));
  EXPECT_THAT(run({"config", "check", "nowhere.json"}).error, HasSubstr("nowhere.json"));
}

TEST(ConfigCommand, ReportsEveryError) {
  const std::string file = written(R"({
    "max_sequence": 1, "port": 99999, "log_level": "loud",
    "model": "nowhere.gguf", "draft_model": "nowhere2.gguf", "gates": {"a": "nowhere.st", "b": "nowhere2.st"},
    "kv_cache": "ballanced", "device": "cuda:0", "cuda_graphs": "on", "dtype": "f16", "rope_scaling": {"type": "stretch"},
    "sampling": {"temperature": -1, "top_k": -3}, "max_buffered_bytes": 1000, "speculative": "psychic",
    "allowed_policies": ["fool", "fuel"], "allowed_speculation": ["psychic"], "api_key": "two words", "tls_key": "k.pem",
    "api_keys_file": "nowhere.keys", "trusted_proxies": ["everybody", "somebody"]})");
  const Ran ran = run({"config", "check", file.c_str()});
  EXPECT_EQ(ran.code, kUsageError);
  for (const char* place : {"max_sequence",
                            "port",
                            "log_level",
                            "model: ",
                            "draft_model: ",
                            "gates.a",
                            "gates.b",
                            "kv_cache",
                            "device",
                            "dtype",
                            "rope_scaling.type",
                            "temperature",
                            "top_k",
                            "max_buffered_bytes",
                            "speculative",
                            "fool",
                            "fuel",
                            "allowed_speculation",
                            "api_key: ",
                            "tls_key alone",
                            "nowhere.keys",
                            "everybody\", \"somebody"}) {
    EXPECT_THAT(ran.error, HasSubstr(place));
  }
  EXPECT_EQ(std::count(ran.error.begin(), ran.error.end(), '\n'), 22) << ran.error;
}

TEST(ConfigCommand, AKeyMayEndWithTheLineBreakOfItsFile) {
  const auto key_of = [](const std::string& key) {
    ServerOptions options;
    options.http.api_key = key;
    complete(&options);
    return options.http.api_key;
  };
  EXPECT_EQ(key_of("secret\n"), "secret");
  EXPECT_EQ(key_of("secret\r\n"), "secret");
  for (const char* wrong : {"sec\nret", " secret", "secret ", "s\xc3\xa4"})
    EXPECT_THROW(key_of(wrong), ConfigError) << wrong;
}

TEST(ConfigCommand, PrintsPresets) {
  EXPECT_EQ(run({"config", "preset"}).out, "gpu\nlaptop\nlong_context\nlow_memory\nserver\n");
  EXPECT_EQ(run({"config", "preset", "laptop"}).out, find_preset("laptop").text());
}

TEST(ConfigSchema, KnowsEveryOptionAndItsValues) {
  const auto properties = config_schema()["properties"];
  EXPECT_EQ(properties.size(), option_table().size() + 1);
  EXPECT_EQ(properties["port"]["maximum"], 65535);
  EXPECT_EQ(properties["dtype"]["enum"], nlohmann::ordered_json({"auto", "bf16", "f16", "f32"}));
  EXPECT_EQ(properties["kv_cache_bytes"]["anyOf"][1]["type"], "string");
  EXPECT_FALSE(properties["kv_cache_bytes"]["anyOf"][0].contains("maximum"));
  EXPECT_EQ(config_schema()["additionalProperties"], false);
}

TEST(ConfigSchema, EditorsKeyIsNoOption) {
  ServerOptions options;
  EXPECT_NO_THROW(read_config(R"({"$schema": "config.schema.json", "port": 1})", "test.json", &options));
  EXPECT_EQ(options.http.port, 1);
  EXPECT_THROW(read_config(R"({"$schema": 1})", "test.json", &options), ConfigError);
}

}  // namespace
}  // namespace smartkv

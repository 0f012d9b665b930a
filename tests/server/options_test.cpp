#include "server/commands/options.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "tests/server/command_runner.h"

namespace smartkv {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string config_error(const std::string& text) {
  ServerOptions options;
  try {
    read_config(text, "test.json", &options);
  } catch (const ConfigError& error) {
    return error.what();
  }
  return "";
}

TEST(OptionsTest, ReadsEveryKindFromAConfigFile) {
  ServerOptions options;
  read_config(R"({
    // a comment
    "model": "m.gguf", "port": 0, "kv_cache_bytes": "2GiB", "max_body_bytes": 1000, "served_model_name": ["a", "b"],
    "kv_cache": {"policy": "window", "tokens": 64}, "speculative": "ngram", "dtype": "f32" /* another */
  })",
              "test.json", &options);
  EXPECT_EQ(options.engine.model.path, "m.gguf");
  EXPECT_EQ(options.http.port, 0);
  EXPECT_EQ(options.engine.kv_cache_bytes, int64_t{2} << 30);
  EXPECT_EQ(options.http.max_body_bytes, 1000);
  EXPECT_EQ(options.served_model_name, (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(options.engine.kv_cache["tokens"], 64);
  EXPECT_EQ(options.engine.speculative, "ngram");
  EXPECT_EQ(options.engine.model.dtype, DataType::kF32);
}

// CLI11 reads these values as numbers, so the options themselves must refuse them.
void expect_finite_numbers_only(const CLI::App& app, std::vector<std::string> command, int* found) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->get_type_name().starts_with("FLOAT") || option->get_lnames().empty()) continue;
    for (const char* value : {"nan", "inf", "-inf", "NAN", "1e999"}) {
      std::vector<std::string> words = command;
      words.push_back("--" + option->get_lnames()[0] + "=" + value);
      std::vector<const char*> arguments;
      for (const std::string& word : words) arguments.push_back(word.c_str());
      const test::Ran ran = test::run(arguments);
      EXPECT_EQ(ran.code, kUsageError) << words.back();
      EXPECT_THAT(ran.error, HasSubstr(option->get_lnames()[0])) << words.back();
    }
    ++*found;
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    std::vector<std::string> longer = command;
    longer.push_back(sub->get_name());
    expect_finite_numbers_only(*sub, longer, found);
  }
}

TEST(OptionsTest, NoNumberIsNanOrInfinite) {
  int found = 0;
  for (const Command& command : commands()) {
    CLI::App app;
    command.setup(app);
    expect_finite_numbers_only(app, {std::string(command.name)}, &found);
  }
  EXPECT_GE(found, 9);
}

TEST(OptionsTest, NamesTheFileTheOptionAndWhatWasFound) {
  EXPECT_THAT(config_error(R"({"max_sequence": 3})"),
              AllOf(HasSubstr("test.json"), HasSubstr("\"max_sequence\""), HasSubstr("\"max_sequences\"")));
  EXPECT_THAT(config_error(R"({"port": "80"})"),
              AllOf(HasSubstr("port"), HasSubstr("from 0 to 65535"), HasSubstr("\"80\"")));
  EXPECT_THAT(config_error(R"({"port": 65536})"), HasSubstr("65536"));
  EXPECT_THAT(config_error(R"({"port": 18446744073709551615})"), HasSubstr("port"));
  EXPECT_THAT(config_error(R"({"port": 1.5})"), HasSubstr("port"));
  EXPECT_THAT(config_error(R"({"dtype": "fp8"})"),
              HasSubstr("test.json: dtype: expected one of auto bf16 f16 f32, found \"fp8\""));
  EXPECT_THAT(config_error(R"({"weights": "int3"})"),
              HasSubstr("weights: expected one of auto file bf16 f32 int8 int4, found \"int3\""));
  EXPECT_THAT(config_error(R"({"backend": "tensorrt"})"),
              HasSubstr("backend: expected one of native torch, found \"tensorrt\""));
  EXPECT_THAT(config_error(R"({"cuda_graphs": "yes"})"),
              HasSubstr("cuda_graphs: expected one of auto on off, found \"yes\""));
  EXPECT_THAT(config_error(R"({"draft_weights": "int2"})"),
              HasSubstr("draft_weights: expected one of none int4, found \"int2\""));
  EXPECT_THAT(config_error(R"({"dtype": 16})"), HasSubstr("dtype: expected a string, found 16"));
  EXPECT_THAT(config_error(R"({"rope_scaling": "longrope"})"),
              HasSubstr("test.json: rope_scaling: expected none, linear, dynamic or yarn, found \"longrope\""));
  EXPECT_THAT(config_error(R"({"rope_scaling": 2})"),
              HasSubstr("rope_scaling: expected a name, an object or null, found 2"));
  EXPECT_THAT(config_error(R"({"model": 3})"), HasSubstr("a string"));
  EXPECT_THAT(config_error(R"({"kv_cache": 3})"), HasSubstr("kv_cache"));
  EXPECT_THAT(config_error(R"({"kv_cache_bytes": "2 bananas"})"), HasSubstr("2GiB"));
  EXPECT_THAT(config_error(R"({"served_model_name": [""]})"), HasSubstr("served_model_name"));
  EXPECT_THAT(config_error(R"({"port": 1, "port": 2})"), HasSubstr("duplicate key"));
  EXPECT_THAT(config_error("[]"), HasSubstr("object"));
  EXPECT_THAT(config_error("{\n  \"port\": }"), HasSubstr("line 2"));
  EXPECT_THAT(config_error(""), HasSubstr("test.json"));
}

TEST(OptionsTest, ReadsTextOfTheCommandLine) {
  ServerOptions options;
  const auto set = [&](const std::string& name, const std::string& text) {
    for (const Option& option : option_table()) {
      if (option.name == name) set_option_text(option, text, "command line", &options);
    }
  };
  set("max_sequences", "4");
  set("kv_cache", R"({"policy": "full"})");
  set("served_model_name", "a,b");
  set("max_body_bytes", "1MiB");
  set("api_key", "123");
  set("backend", "torch");
  set("rope_scaling", R"({"type": "linear", "factor": 2})");
  EXPECT_EQ(options.engine.max_sequences, 4);
  EXPECT_EQ(options.engine.kv_cache["policy"], "full");
  EXPECT_EQ(options.served_model_name.size(), 2u);
  EXPECT_EQ(options.http.max_body_bytes, 1 << 20);
  EXPECT_EQ(options.http.api_key, "123");
  EXPECT_EQ(options.engine.model.backend, Backend::kTorch);
  EXPECT_EQ(options.engine.model.rope_scaling.scaling, RopeScaling::kLinear);
  EXPECT_EQ(options.engine.model.rope_scaling.factor, 2);
  EXPECT_THROW(set("backend", "cpu"), ConfigError);
  EXPECT_THROW(set("rope_scaling", R"({"factor": 2})"), ConfigError);
  EXPECT_THROW(set("max_sequences", "4x"), ConfigError);
  EXPECT_THROW(set("kv_cache", "{"), ConfigError);
}

TEST(OptionsTest, ReadsGates) {
  ServerOptions options;
  read_config(R"({"gates": {"mine": "a.safetensors", "x": "b=c"}, "allowed_policies": ["full", "balanced"]})",
              "test.json", &options);
  EXPECT_EQ(options.engine.model.gates["x"], "b=c");
  EXPECT_EQ(options.engine.allowed_policies.size(), 2u);
  for (const Option& option : option_table()) {
    if (option.name != "gates") continue;
    EXPECT_EQ(flag(option), "--gate");
    set_option_text(option, "y=d=e", "command line", &options);  // added to those of the file
    EXPECT_THROW(set_option_text(option, "file", "command line", &options), ConfigError);
    EXPECT_THROW(set_option_text(option, "=file", "command line", &options), ConfigError);
  }
  EXPECT_EQ(options.engine.model.gates.size(), 3u);
  EXPECT_EQ(options.engine.model.gates["y"], "d=e");
  EXPECT_THAT(config_error(R"({"gates": "file"})"), HasSubstr("gates: expected an object of files by name"));
  EXPECT_THAT(config_error(R"({"gates": {"": "file"}})"), HasSubstr("gates"));
  EXPECT_THAT(config_error(R"({"gates": {"a": 1}})"), HasSubstr("gates"));
}

TEST(OptionsTest, ParsesSizes) {
  EXPECT_EQ(parse_bytes("512"), 512);
  EXPECT_EQ(parse_bytes("1.5GiB"), 3 * (int64_t{1} << 29));
  EXPECT_EQ(parse_bytes("2 MB"), 2'000'000);
  for (const char* bad : {"", "GiB", "-1", "1e3", "1gib", "9999999999TiB", "1GiB "}) {
    EXPECT_THROW(parse_bytes(bad), std::invalid_argument) << bad;
  }
}

TEST(OptionsTest, PrintedConfigReadsBack) {
  ServerOptions options, again;
  options.engine.model.path = "x";
  options.engine.max_queue = 9;
  options.engine.model.weights = WeightFormat::kInt4;
  options.engine.model.cuda_graphs = CudaGraphs::kOff;
  options.engine.model.rope_scaling = {RopeScaling::kYarn, 4};
  options.http.api_key = "secret";
  const std::string text = config_text(options);
  read_config(text, "printed", &again);
  EXPECT_EQ(again.engine.max_queue, 9);
  EXPECT_EQ(again.engine.model.weights, WeightFormat::kInt4);
  EXPECT_EQ(again.engine.model.cuda_graphs, CudaGraphs::kOff);
  EXPECT_EQ(again.engine.model.rope_scaling.scaling, RopeScaling::kYarn);
  EXPECT_EQ(again.engine.model.rope_scaling.factor, 4);
  EXPECT_THAT(text, AllOf(HasSubstr(R"("weights": "int4")"), HasSubstr(R"("dtype": "auto")"),
                          HasSubstr(R"("rope_scaling": {)")));
  EXPECT_EQ(text.find("secret"), std::string::npos);
}

TEST(OptionsTest, ShippedConfigsAreValid) {
  for (const auto& file : std::filesystem::directory_iterator(std::filesystem::path(SMARTKV_SOURCE) / "configs")) {
    ServerOptions options;
    EXPECT_NO_THROW(read_config_file(file.path(), &options)) << file.path();
  }
}

TEST(OptionsTest, SurvivesMutatedConfigs) {
  ServerOptions defaults;
  const std::string seed = config_text(defaults);
  std::mt19937 random(2);
  for (int i = 0; i < 3000; ++i) {
    std::string text = seed;
    for (int k = 0; k < 3; ++k) text[random() % text.size()] = static_cast<char>(random());
    text.erase(random() % text.size(), random() % 5);
    config_error(text);  // any exception except ConfigError fails the test
  }
}

}  // namespace
}  // namespace smartkv

// Sampling defaults that a model's files recommend.
#include "server/commands/sampling_defaults.h"

#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;
using testing::HasSubstr;

class SamplingDefaults : public testing::Test {
 protected:
  SamplingDefaults() { std::filesystem::create_directories(path_); }
  ~SamplingDefaults() override { std::filesystem::remove_all(path_); }

  Json of(const Json& generation_config) {
    std::ofstream(path_ / "generation_config.json") << generation_config;
    ServerOptions options;
    options.engine.model.path = path_;
    return sampling_defaults(options);
  }

  const std::filesystem::path path_ = std::filesystem::path(testing::TempDir()) / "sampling_defaults";
};

TEST_F(SamplingDefaults, AreThoseOfTheFolder) {
  EXPECT_EQ(of({{"temperature", 0.6}, {"top_p", 0.9}, {"do_sample", true}}),
            (Json{{"temperature", 0.6}, {"top_p", 0.9}}));
  EXPECT_EQ(of({{"temperature", 0.6}, {"do_sample", nullptr}}), (Json{{"temperature", 0.6}}));
  EXPECT_EQ(of({{"eos_token_id", nullptr}}), Json::object());
}

TEST_F(SamplingDefaults, AreGreedyWhereTheModelIsNotToDraw) {
  EXPECT_EQ(of({{"do_sample", false}}), (Json{{"temperature", 0}}));
  EXPECT_EQ(of({{"do_sample", false}, {"temperature", 0.6}, {"top_k", 20}, {"repetition_penalty", 1.1}}),
            (Json{{"temperature", 0}, {"repetition_penalty", 1.1}}));
}

TEST_F(SamplingDefaults, NameWhatIsWrong) {
  const auto error_of = [this](const Json& config) -> std::string {
    try {
      of(config);
    } catch (const ConfigError& error) {
      return error.what();
    }
    return "no error";
  };
  EXPECT_THAT(error_of({{"do_sample", 0}}),
              HasSubstr("generation_config.json: do_sample: expected true or false, found 0"));
  EXPECT_THAT(error_of({{"do_sample", false}, {"temperature", "hot"}}), HasSubstr("'temperature': expected a number"));
}

// A default that no request could send would be an error in every request that omits the field.
TEST_F(SamplingDefaults, AreWhatRequestsCouldSend) {
  for (const Json& value :
       {Json{{"repetition_penalty", 0}}, Json{{"repetition_penalty", 1e-46}}, Json{{"temperature", 2.5}},
        Json{{"top_p", -1e-9}}, Json{{"top_p", 1.1}}, Json{{"top_k", -2}}, Json{{"top_k", 2147483648}},
        Json{{"top_k", 1.5}}, Json{{"min_p", "0.1"}}}) {
    EXPECT_THROW(of(value), ConfigError) << value;
    ServerOptions options;
    options.sampling = value;
    EXPECT_THROW(sampling_defaults(options), ConfigError) << value;
  }
  EXPECT_EQ(of({{"top_p", 0}, {"top_k", -1}}), (Json{{"top_p", 0}, {"top_k", -1}}));
}

}  // namespace
}  // namespace smartkv

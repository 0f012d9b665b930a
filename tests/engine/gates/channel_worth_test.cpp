#include "engine/gates/channel_worth.h"

#include <unistd.h>

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cache/sequence_cache.h"
#include "tests/engine/model/tiny_llama.h"

namespace smartkv {
namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kWorthIdentity = "0123456789abcdef0123456789abcdef";

class ChannelWorthFile : public testing::Test {
 protected:
  ChannelWorthFile() : model_(tiny_config()) {
    const auto heads = static_cast<size_t>(model_.n_kv_heads), dim = static_cast<size_t>(model_.head_dim);
    const json keys(heads, json(dim / 2, 0.5)), values(heads, json(dim, 0.25));
    content_ = {{"model_identity", kWorthIdentity},
                {"layers", json(static_cast<size_t>(model_.n_layers), keys)},
                {"values", json(static_cast<size_t>(model_.n_layers), values)}};
  }
  ~ChannelWorthFile() override { std::filesystem::remove(path_); }

  std::shared_ptr<const ChannelWorth> load(const std::string& text) const {
    std::ofstream(path_) << text;
    return load_channel_worth(path_, model_, kWorthIdentity);
  }
  std::string error_of(const std::string& text) const {
    try {
      load(text);
    } catch (const CacheError& error) {
      return error.what();
    }
    return "no error";
  }

  ModelConfig model_;
  json content_;
  std::filesystem::path path_ =
      std::filesystem::path(testing::TempDir()) / ("worth_" + std::to_string(::getpid()) + ".json");
};

TEST_F(ChannelWorthFile, HoldsEveryPairAndChannel) {
  content_["values"][1][0][3] = 7;
  const auto worth = load(content_.dump());
  const auto channels = static_cast<size_t>(model_.n_layers * model_.n_kv_heads * model_.head_dim);
  EXPECT_EQ(worth->keys, std::vector<float>(channels / 2, 0.5f));
  ASSERT_EQ(worth->values.size(), channels);
  EXPECT_EQ(worth->values[static_cast<size_t>(model_.n_kv_heads * model_.head_dim) + 3], 7);
}

TEST_F(ChannelWorthFile, ErrorsNameThePlace) {
  EXPECT_THAT(error_of("no json"), HasSubstr("expected JSON"));
  EXPECT_THAT(error_of(R"({"layers": []})"), HasSubstr("members layers and values"));
  json other = content_, few = content_, text = content_, negative = content_;
  other["model_identity"] = "0";
  EXPECT_THAT(error_of(other.dump()), HasSubstr("model_identity: expected " + std::string(kWorthIdentity)));
  few["layers"][1][0].erase(0);
  EXPECT_THAT(error_of(few.dump()),
              HasSubstr("layers[1][0]: expected a list of length " + std::to_string(model_.head_dim / 2)));
  text["values"][0][0][2] = "much";
  EXPECT_THAT(error_of(text.dump()), HasSubstr("values[0][0][2]: expected a number of at least 0, found \"much\""));
  negative["values"][0][0][2] = -1;
  EXPECT_THAT(error_of(negative.dump()), HasSubstr("values[0][0][2]"));
  std::filesystem::remove(path_);
  EXPECT_THROW(load_channel_worth(path_, model_, kWorthIdentity), CacheError);
  EXPECT_THROW(load_channel_worth("/dev/null", model_, kWorthIdentity), CacheError);
}

}  // namespace
}  // namespace smartkv

#include "hub/hub_settings.h"

#include <cstdlib>
#include <fstream>

#include <gtest/gtest.h>

#include "hub/hub_error.h"

namespace smartkv {
namespace {

// Sets variables as long as it lives, and clears all that the settings depend on.
class Variables {
 public:
  explicit Variables(std::map<std::string, std::string> values) {
    for (const char* name : {"HF_ENDPOINT", "HF_HOME", "HF_HUB_CACHE", "HF_TOKEN", "HF_TOKEN_PATH", "HF_HUB_OFFLINE",
                             "XDG_CACHE_HOME", "HOME", "HTTPS_PROXY", "https_proxy", "HTTP_PROXY", "http_proxy",
                             "ALL_PROXY", "all_proxy", "NO_PROXY", "no_proxy"}) {
      const char* const value = std::getenv(name);
      before_.emplace_back(name, value == nullptr ? std::nullopt : std::optional<std::string>(value));
      ::unsetenv(name);
    }
    for (const auto& [name, value] : values) ::setenv(name.c_str(), value.c_str(), 1);
  }
  ~Variables() {
    for (const auto& [name, value] : before_)
      value ? ::setenv(name.c_str(), value->c_str(), 1) : ::unsetenv(name.c_str());
  }

 private:
  std::vector<std::pair<std::string, std::optional<std::string>>> before_;
};

TEST(HubSettings, TheCacheIsThatOfHuggingfaceHub) {
  const auto cache = [](const std::map<std::string, std::string>& values) {
    const Variables variables(values);
    return HubSettings::from_environment().cache.string();
  };
  EXPECT_EQ(cache({{"HOME", "/h"}}), "/h/.cache/huggingface/hub");
  EXPECT_EQ(cache({{"HOME", "/h"}, {"XDG_CACHE_HOME", "/x"}}), "/x/huggingface/hub");
  EXPECT_EQ(cache({{"XDG_CACHE_HOME", "/x"}, {"HF_HOME", "/f"}}), "/f/hub");
  EXPECT_EQ(cache({{"HF_HOME", "/f"}, {"HF_HUB_CACHE", "/c"}}), "/c");
  const Variables none({});
  EXPECT_THROW(HubSettings::from_environment(), HubError);
}

TEST(HubSettings, TheTokenIsAVariableOrAFile) {
  const std::string file = testing::TempDir() + "/token";
  std::ofstream(file) << "from-file\n";
  {
    const Variables variables(
        {{"HOME", "/h"}, {"HF_TOKEN_PATH", file}, {"HF_ENDPOINT", "https://hub.example/"}, {"HF_HUB_OFFLINE", "Yes"}});
    const HubSettings settings = HubSettings::from_environment();
    EXPECT_EQ(settings.token, "from-file");
    EXPECT_EQ(settings.endpoint, "https://hub.example");
    EXPECT_TRUE(settings.offline);
  }
  const Variables variables({{"HOME", "/h"}, {"HF_TOKEN_PATH", file}, {"HF_TOKEN", " own "}, {"HF_HUB_OFFLINE", "0"}});
  EXPECT_EQ(HubSettings::from_environment().token, "own");
  EXPECT_FALSE(HubSettings::from_environment().offline);
}

TEST(HubSettings, AProxyHoldsForAllHostsButThoseExcluded) {
  const Variables variables(
      {{"HTTPS_PROXY", "http://p:1"}, {"all_proxy", "http://q:2"}, {"NO_PROXY", "localhost, .example.com"}});
  EXPECT_EQ(proxy_for("https", "hub.org"), "http://p:1");
  EXPECT_EQ(proxy_for("http", "hub.org"), "http://q:2");
  EXPECT_EQ(proxy_for("https", "localhost"), "");
  EXPECT_EQ(proxy_for("https", "a.example.com"), "");
  EXPECT_EQ(proxy_for("https", "badexample.com"), "http://p:1");
}

}  // namespace
}  // namespace smartkv

#include "hub/hub_settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "hub/hub_error.h"
#include "hub/letters.h"

namespace smartkv {
namespace {

std::string variable_or(const char* name, const std::string& fallback = "") {
  const char* const value = std::getenv(name);
  return value == nullptr || *value == '\0' ? fallback : value;
}

bool is_true(const std::string& value) {
  const std::string text = lower(value);
  return text == "1" || text == "on" || text == "yes" || text == "true";
}

std::string trimmed(const std::string& text) {
  const auto first = text.find_first_not_of(" \t\r\n"), last = text.find_last_not_of(" \t\r\n");
  return first == std::string::npos ? "" : text.substr(first, last - first + 1);
}

// Returns a variable's value, in small letters first, as curl does.
std::string either_case(const std::string& name) { return variable_or(lower(name).c_str(), variable_or(name.c_str())); }

}  // namespace

HubSettings HubSettings::from_environment() {
  HubSettings settings;
  settings.endpoint = variable_or("HF_ENDPOINT", settings.endpoint);
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();
  const std::string home = variable_or("HOME"),
                    user_cache = variable_or("XDG_CACHE_HOME", home.empty() ? "" : home + "/.cache"),
                    hf_home = variable_or("HF_HOME", user_cache.empty() ? "" : user_cache + "/huggingface");
  settings.cache = variable_or("HF_HUB_CACHE", hf_home.empty() ? "" : hf_home + "/hub");
  if (settings.cache.empty()) {
    throw HubError("no folder for models: set HF_HUB_CACHE, HF_HOME, XDG_CACHE_HOME or HOME");
  }
  settings.token = trimmed(variable_or("HF_TOKEN"));
  if (settings.token.empty()) {
    std::ifstream file(variable_or("HF_TOKEN_PATH", hf_home + "/token"));
    std::ostringstream text;
    if (file) text << file.rdbuf();
    settings.token = trimmed(text.str());
  }
  settings.offline = is_true(variable_or("HF_HUB_OFFLINE"));
  return settings;
}

std::string proxy_for(const std::string& scheme, const std::string& host) {
  std::istringstream excluded(either_case("NO_PROXY"));
  for (std::string name; std::getline(excluded, name, ',');) {
    name = trimmed(name);
    if (name == "*") return "";
    while (name.starts_with('.') || name.starts_with('*')) name.erase(0, 1);
    if (name.empty()) continue;
    if (host == name || host.ends_with("." + name)) return "";
  }
  const std::string own = either_case(scheme == "https" ? "HTTPS_PROXY" : "HTTP_PROXY");
  return own.empty() ? either_case("ALL_PROXY") : own;
}

}  // namespace smartkv

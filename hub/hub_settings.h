// Where models come from and where they are kept, by the variables that huggingface_hub reads.
#pragma once

#include <filesystem>
#include <string>

namespace smartkv {

struct HubSettings {
  std::string endpoint = "https://huggingface.co";  // HF_ENDPOINT; without a slash at its end
  std::filesystem::path
      cache;             // HF_HUB_CACHE, $HF_HOME/hub, $XDG_CACHE_HOME/huggingface/hub or ~/.cache/huggingface/hub
  std::string token;     // HF_TOKEN, or the file HF_TOKEN_PATH or $HF_HOME/token; empty if there is none
  bool offline = false;  // HF_HUB_OFFLINE

  // Throws HubError if no folder for the cache is known.
  static HubSettings from_environment();
};

// Returns the proxy for a URL: HTTPS_PROXY, HTTP_PROXY or ALL_PROXY, in capitals or not. Empty if there is none, or if
// NO_PROXY lists the host or a domain above it.
std::string proxy_for(const std::string& scheme, const std::string& host);

}  // namespace smartkv

// HTTP requests to a hub and to the servers that it sends clients to.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "hub/hub_settings.h"

namespace smartkv {

struct HubResponse {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // by name in small letters
  std::string body = {};
  std::string url = {};  // where it came from, after redirects

  // Returns a header; empty if there is none.
  std::string header(const std::string& name) const;
};

// Every request is tried again after a broken connection, a status of 5xx, or 429, up to kTries times, later each time
// or after what Retry-After asks for. The token is sent to the hub itself only. Throws HubUnreachable, and HubError for
// other failures than a status.
class HubHttp {
 public:
  static constexpr int kTries = 5;

  explicit HubHttp(HubSettings settings) : settings_(std::move(settings)) {}

  // Follows redirects. `path` begins with a slash.
  HubResponse get(const std::string& path) const;
  // Follows redirects within the hub only: the answer to one that leads elsewhere has the headers of a file.
  HubResponse head(const std::string& path) const;
  // Downloads bytes [first, end of the file) of a URL of the hub. sink: gets the next bytes, and may throw. A broken
  // connection goes on where it broke. Returns the last response, without a body; the sink gets the bodies of statuses
  // 200 and 206 only. If the server does not know Range and first > 0, restart() is called before the bytes come from
  // 0.
  HubResponse download(const std::string& path, int64_t first, const std::function<void(std::string_view)>& sink,
                       const std::function<void()>& restart) const;

 private:
  struct Attempt;
  HubResponse once(const Attempt& attempt) const;
  HubResponse follow(Attempt attempt) const;
  HubResponse retry(const Attempt& attempt) const;

  HubSettings settings_;
};

}  // namespace smartkv

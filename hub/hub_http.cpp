#include "hub/hub_http.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <thread>
#include <utility>

#include <httplib.h>

#include "hub/hub_error.h"
#include "hub/letters.h"

namespace smartkv {
namespace {

constexpr int kMostRedirects = 10;
constexpr std::chrono::seconds kConnect{10}, kRead{30}, kLongestWait{60};

struct Url {
  std::string scheme, host, path;
  int port = 0;

  std::string origin() const { return scheme + "://" + host + ":" + std::to_string(port); }
};

int number_of(std::string_view text) {
  int value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? value : -1;
}

Url parse_url(const std::string& text) {
  Url url;
  const auto scheme_end = text.find("://");
  url.scheme = text.substr(0, std::min(scheme_end, text.size()));
  if (scheme_end == std::string::npos || (url.scheme != "http" && url.scheme != "https")) {
    throw HubError("HF_ENDPOINT: expected a URL with http or https, found \"" + text + '"');
  }
  const auto begin = scheme_end + 3, slash = std::min(text.find('/', begin), text.size());
  std::string place = text.substr(begin, slash - begin);
  url.port = url.scheme == "https" ? 443 : 80;
  const auto colon = place.rfind(':');
  if (colon != std::string::npos && place.find(']', colon) == std::string::npos) {
    url.port = number_of(std::string_view(place).substr(colon + 1));
    place.resize(colon);
  }
  url.host = place;
  url.path = slash == text.size() ? "/" : text.substr(slash);
  if (url.host.empty() || url.port < 1 || url.port > 65535)
    throw HubError("expected a URL with a host, found \"" + text + '"');
  return url;
}

// Whether the same request may succeed later.
bool is_temporary(int status) { return status == 408 || status == 429 || status >= 500; }

}  // namespace

std::string HubResponse::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

struct HubHttp::Attempt {
  std::string method, url;
  bool stays_on_hub = false;  // a redirect to another host is an answer
  int64_t first = 0;
  std::function<void(std::string_view)> sink = nullptr;
  std::function<void()> restart = nullptr;
};

// Sends one request, without redirects. Throws HubUnreachable if the connection fails.
HubResponse HubHttp::once(const Attempt& attempt) const {
  const Url url = parse_url(attempt.url), hub = parse_url(settings_.endpoint);
  httplib::Client client(url.origin());
  client.set_connection_timeout(kConnect);
  client.set_read_timeout(kRead);
  client.set_write_timeout(kRead);
  client.set_url_encode(false);
  if (const std::string proxy = proxy_for(url.scheme, url.host); !proxy.empty()) {
    const Url at = parse_url(proxy.find("://") == std::string::npos ? "http://" + proxy : proxy);
    const auto user = at.host.rfind('@');
    client.set_proxy(at.host.substr(user == std::string::npos ? 0 : user + 1), at.port);
    if (user != std::string::npos) {
      const std::string name = at.host.substr(0, user);
      const auto colon = std::min(name.find(':'), name.size());
      client.set_proxy_basic_auth(name.substr(0, colon), name.substr(std::min(colon + 1, name.size())));
    }
  }
  httplib::Headers headers = {{"User-Agent", "smartkv/" SMARTKV_VERSION}, {"Accept-Encoding", "identity"}};
  if (!settings_.token.empty() && url.origin() == hub.origin())
    headers.emplace("Authorization", "Bearer " + settings_.token);
  if (attempt.first > 0) headers.emplace("Range", "bytes=" + std::to_string(attempt.first) + "-");
  HubResponse response{.url = attempt.url};
  const auto note = [&](const httplib::Response& from) {
    response.status = from.status;
    for (const auto& [name, value] : from.headers) {
      response.headers[lower(name)] = value;
    }
  };
  std::exception_ptr failure;
  bool begun = false;
  const auto receive = [&](const char* data, size_t size) {
    if (attempt.sink == nullptr || response.status / 100 != 2) {
      constexpr size_t kMostBody = 64 << 20;
      if (response.body.size() + size > kMostBody) return false;
      response.body.append(data, size);
      return true;
    }
    try {
      if (!std::exchange(begun, true) && attempt.first > 0 && response.status == 200) attempt.restart();
      attempt.sink({data, size});
      return true;
    } catch (...) {
      failure = std::current_exception();
      return false;
    }
  };
  const auto result = attempt.method == "HEAD" ? client.Head(url.path, headers)
                                               : client.Get(
                                                     url.path, headers,
                                                     [&](const httplib::Response& from) {
                                                       note(from);
                                                       return true;
                                                     },
                                                     receive);
  if (failure != nullptr) std::rethrow_exception(failure);
  if (!result) {
    std::string why = httplib::to_string(result.error());
    if (result.error() == httplib::Error::SSLServerVerification) {
      throw HubError(url.origin() +
                     ": its certificate is not trusted; SSL_CERT_FILE may name the authorities to trust");
    }
    throw HubUnreachable(url.origin() + " cannot be reached (" + why + ")");
  }
  note(*result);
  return response;
}

HubResponse HubHttp::follow(Attempt attempt) const {
  for (int i = 0; i < kMostRedirects; ++i) {
    HubResponse response = once(attempt);
    const std::string location = response.header("location");
    if (response.status / 100 != 3 || location.empty()) return response;
    const Url from = parse_url(attempt.url);
    const std::string target = location.starts_with("/") ? from.origin() + location : location;
    if (attempt.stays_on_hub && parse_url(target).origin() != from.origin()) return response;
    if (from.scheme == "https" && parse_url(target).scheme != "https") {
      throw HubError(from.origin() + " redirects to " + parse_url(target).origin() + ", which is not encrypted");
    }
    attempt.url = target;
  }
  throw HubError(attempt.url + ": more than " + std::to_string(kMostRedirects) + " redirects");
}

HubResponse HubHttp::retry(const Attempt& attempt) const {
  std::chrono::milliseconds wait{500};
  for (int tries = 1;; ++tries) {
    try {
      HubResponse response = follow(attempt);
      if (!is_temporary(response.status) || tries == kTries) return response;
      if (const int seconds = number_of(response.header("retry-after")); seconds >= 0) {
        wait = std::min<std::chrono::milliseconds>(std::chrono::seconds(seconds), kLongestWait);
      }
    } catch (const HubUnreachable&) {
      if (tries == kTries) throw;
    }
    std::this_thread::sleep_for(wait);
    wait = std::min<std::chrono::milliseconds>(2 * std::max(wait, std::chrono::milliseconds(250)), kLongestWait);
  }
}

HubResponse HubHttp::get(const std::string& path) const { return retry({"GET", settings_.endpoint + path}); }

HubResponse HubHttp::head(const std::string& path) const { return retry({"HEAD", settings_.endpoint + path, true}); }

HubResponse HubHttp::download(const std::string& path, int64_t first, const std::function<void(std::string_view)>& sink,
                              const std::function<void()>& restart) const {
  Attempt attempt{"GET",
                  settings_.endpoint + path,
                  false,
                  first,
                  [&](std::string_view bytes) {
                    sink(bytes);
                    attempt.first += static_cast<int64_t>(bytes.size());
                  },
                  [&] {
                    restart();
                    attempt.first = 0;
                  }};
  // Tries count anew as long as bytes come.
  for (int64_t before = -1;;) {
    try {
      return retry(attempt);
    } catch (const HubUnreachable&) {
      if (attempt.first == before) throw;
      before = attempt.first;
    }
  }
}

}  // namespace smartkv

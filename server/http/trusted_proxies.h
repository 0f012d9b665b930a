// Who a request comes from where reverse proxies stand before the server.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace smartkv::http {

// A text that is no address or network; the message names the option, what was expected and what was found.
class ProxyError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class TrustedProxies {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;  // names in lower case

  // `networks`: addresses, or networks such as 10.0.0.0/8 and fd00::/8. Throws ProxyError.
  explicit TrustedProxies(const std::vector<std::string>& networks);

  // Returns the client's address. It is the last one in X-Forwarded-For that is no trusted proxy's, because any client may write the
  // beginning of that field; `peer` itself, if it is no trusted proxy.
  std::string client_of(const std::string& peer, const Fields& fields) const;

 private:
  using Address = std::array<uint8_t, 16>;  // IPv4 as ::ffff:a.b.c.d
  struct Network {
    Address address;
    int bits;
  };

  static bool parse(std::string text, Address* address);
  bool trusts(const Address& address) const;

  std::vector<Network> networks_;
};

}  // namespace smartkv::http

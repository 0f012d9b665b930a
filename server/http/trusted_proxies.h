// Finds the address of a client behind reverse proxies.
#pragma once

#include <array>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace smartkv::http {

// A text that is neither an address nor a network. The message names the option, what was expected and what was found.
class ProxyError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

class TrustedProxies {
 public:
  using Fields = std::vector<std::pair<std::string, std::string>>;  // names in lower case

  // `networks` holds addresses, and networks such as 10.0.0.0/8 and fd00::/8. Throws ProxyError.
  explicit TrustedProxies(const std::vector<std::string>& networks);

  // Returns the client's address. If `peer` is not a trusted proxy, it is the client. Otherwise the client is the last
  // address in X-Forwarded-For that is not a trusted proxy, because any client may write the beginning of that field.
  // If all are trusted, it is the first one; an entry that is no address ends the search at the one after it.
  std::string client_of(const std::string& peer, const Fields& fields) const;

 private:
  using Address = std::array<uint8_t, 16>;  // an IPv4 address is ::ffff:a.b.c.d
  struct Network {
    Address address;
    int bits;
  };

  static bool parse(std::string text, Address* address);
  bool trusts(const Address& address) const;

  std::vector<Network> networks_;
};

}  // namespace smartkv::http

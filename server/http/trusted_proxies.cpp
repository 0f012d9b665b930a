#include "server/http/trusted_proxies.h"

#include <arpa/inet.h>

#include <algorithm>
#include <charconv>

#include "server/http/request_reader.h"

namespace smartkv::http {

namespace {

constexpr std::array<uint8_t, 12> kMapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

// Returns the address without the port that some proxies add: "1.2.3.4:5" and "[::1]:5".
std::string_view host_of(std::string_view text) {
  if (text.starts_with('[')) return text.substr(1, text.find(']') - 1);
  return std::count(text.begin(), text.end(), ':') == 1 ? text.substr(0, text.find(':')) : text;
}

// Returns the canonical text of an address, however it was written.
std::string text_of(const std::array<uint8_t, 16>& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool v4 = std::equal(kMapped.begin(), kMapped.end(), address.begin());
  ::inet_ntop(v4 ? AF_INET : AF_INET6, address.data() + (v4 ? kMapped.size() : 0), text.data(), text.size());
  return text.data();
}

}  // namespace

bool TrustedProxies::parse(std::string text, Address* address) {
  // Drops the interface of a link-local address.
  if (text.find(':') != text.npos) text = text.substr(0, text.find('%'));
  if (::inet_pton(AF_INET6, text.c_str(), address->data()) == 1) return true;
  std::copy(kMapped.begin(), kMapped.end(), address->begin());
  return ::inet_pton(AF_INET, text.c_str(), address->data() + kMapped.size()) == 1;
}

TrustedProxies::TrustedProxies(const std::vector<std::string>& networks) {
  std::string faults;
  for (const std::string& text : networks) {
    const size_t slash = text.find('/');
    const std::string host = text.substr(0, slash);
    Network network{};
    const bool valid = parse(host, &network.address);
    const bool v4 = host.find(':') == host.npos;
    const int most = v4 ? 32 : 128;
    network.bits = most;
    bool whole = true;
    if (slash != text.npos) {
      const char* end = text.data() + text.size();
      const auto [rest, error] = std::from_chars(text.data() + slash + 1, end, network.bits);
      whole = error == std::errc() && rest == end && network.bits >= 0 && network.bits <= most;
    }
    if (!valid || !whole) {
      faults += (faults.empty() ? "\"" : ", \"") + text + '"';
      continue;
    }
    if (v4) network.bits += 128 - 32;
    networks_.push_back(network);
  }
  if (!faults.empty())
    throw ProxyError("trusted_proxies: expected IP addresses or networks such as 10.0.0.0/8, found " + faults);
}

bool TrustedProxies::trusts(const Address& address) const {
  return std::any_of(networks_.begin(), networks_.end(), [&](const Network& network) {
    const auto whole = static_cast<size_t>(network.bits / 8);
    const int rest = network.bits % 8;
    if (!std::equal(address.begin(), address.begin() + whole, network.address.begin())) return false;
    return rest == 0 || ((address[whole] ^ network.address[whole]) >> (8 - rest)) == 0;
  });
}

std::string TrustedProxies::client_of(const std::string& peer, const Fields& fields) const {
  Address address{};
  if (networks_.empty() || !parse(peer, &address) || !trusts(address)) return peer;
  std::string all;
  for (const auto& [name, value] : fields) {
    if (name == "x-forwarded-for") all += (all.empty() ? "" : ",") + value;
  }
  std::string client = peer;
  for (size_t end = all.size(); end != all.npos && !all.empty();) {
    const size_t comma = end == 0 ? all.npos : all.rfind(',', end - 1);
    const size_t first = comma == all.npos ? 0 : comma + 1;
    const std::string host(host_of(trimmed(std::string_view(all).substr(first, end - first))));
    if (!parse(host, &address)) break;
    client = text_of(address);
    if (!trusts(address)) break;
    end = comma;
  }
  return client;
}

}  // namespace smartkv::http

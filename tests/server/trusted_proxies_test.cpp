#include "server/http/trusted_proxies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv::http {
namespace {

TrustedProxies::Fields forwarded(std::initializer_list<const char*> values) {
  TrustedProxies::Fields fields = {{"host", "x"}};
  for (const char* value : values) fields.emplace_back("x-forwarded-for", value);
  return fields;
}

TEST(TrustedProxies, BelieveNobodyWhoIsNotNamed) {
  EXPECT_EQ(TrustedProxies({}).client_of("10.0.0.1", forwarded({"1.2.3.4"})), "10.0.0.1");
  EXPECT_EQ(TrustedProxies({"10.0.0.2"}).client_of("10.0.0.1", forwarded({"1.2.3.4"})), "10.0.0.1");
}

// The beginning of the header may come from the client itself.
TEST(TrustedProxies, TakeTheLastAddressThatIsNoProxys) {
  const TrustedProxies proxies({"10.0.0.0/8", "fd00::/8"});
  EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({"6.6.6.6, 1.2.3.4"})), "1.2.3.4");
  EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({"6.6.6.6, 1.2.3.4 , 10.9.9.9"})), "1.2.3.4");
  EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({"6.6.6.6", "1.2.3.4", "10.9.9.9"})), "1.2.3.4");
  EXPECT_EQ(proxies.client_of("fd00::1", forwarded({"[2001:db8::1]:443"})), "2001:db8::1");
  EXPECT_EQ(proxies.client_of("::ffff:10.0.0.1", forwarded({"1.2.3.4:5678"})), "1.2.3.4");
  EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({"10.0.0.7"})), "10.0.0.7");
  EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({"fe80::1%eth0 x"})), "fe80::1");
  EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({"::ffff:1.2.3.4"})), "1.2.3.4");
}

TEST(TrustedProxies, StopAtWhatIsNoAddress) {
  const TrustedProxies proxies({"10.0.0.1"});
  for (const char* text : {"", ",", "unknown", "1.2.3.4, x\ny", "1.2.3.4,", "[", "a:b", "999.1.1.1", "1.2.3.4%x"}) {
    EXPECT_EQ(proxies.client_of("10.0.0.1", forwarded({text})), "10.0.0.1") << text;
  }
}

TEST(TrustedProxies, NetworksEndWithinBytes) {
  const TrustedProxies proxies({"172.16.0.0/12", "0.0.0.0/32"});
  EXPECT_EQ(proxies.client_of("172.31.255.255", forwarded({"1.2.3.4"})), "1.2.3.4");
  EXPECT_EQ(proxies.client_of("172.32.0.0", forwarded({"1.2.3.4"})), "172.32.0.0");
}

TEST(TrustedProxies, RefuseWhatIsNoNetwork) {
  for (const char* text : {"", "10.0.0.0/33", "10.0.0.0/-1", "10.0.0.0/", "10.0.0.0/8x", "host", "::/129", "1.2.3"}) {
    EXPECT_THROW(TrustedProxies({text}), ProxyError) << text;
  }
}

}  // namespace
}  // namespace smartkv::http

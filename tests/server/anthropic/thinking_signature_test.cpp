#include "server/anthropic/thinking_signature.h"

#include <gtest/gtest.h>

namespace smartkv::anthropic {
namespace {

TEST(ThinkingSignature, ItsOwnTextComesBack) {
  const ThinkingSigner signer("key");
  for (const std::string thinking : {"a", "Let me see.", "π = 3.14…\n"}) {
    EXPECT_EQ(signer.open(thinking, signer.sign(thinking)), thinking);
    EXPECT_EQ(signer.open("", signer.seal(thinking)), thinking);
  }
  EXPECT_EQ(signer.open("", signer.sign("")), "");
}

TEST(ThinkingSignature, OtherTextsKeysAndSignaturesAreRefused) {
  const ThinkingSigner signer("key"), other("another");
  const std::string signature = signer.sign("I think"), sealed = signer.seal("I think");
  EXPECT_EQ(signer.open("I thought", signature), std::nullopt);
  EXPECT_EQ(signer.open("", signature), std::nullopt);
  EXPECT_EQ(signer.open("I think", sealed), std::nullopt);
  EXPECT_EQ(other.open("I think", signature), std::nullopt);
  EXPECT_EQ(other.open("", sealed), std::nullopt);
  for (std::string broken : {signature, sealed}) {
    for (size_t i = 0; i + 2 < broken.size(); i += 3) {
      std::string changed = broken;
      changed[i] = changed[i] == 'A' ? 'B' : 'A';
      EXPECT_EQ(signer.open(broken == signature ? "I think" : "", changed), std::nullopt) << i;
    }
  }
  for (const char* garbage : {"", "=", "==", "====", "A", "abc", "not base64!", "AAAA", "EqQBCkYICxgCKkAxyz=="}) {
    EXPECT_EQ(signer.open("I think", garbage), std::nullopt) << garbage;
    EXPECT_EQ(signer.open("", garbage), std::nullopt) << garbage;
  }
}

}  // namespace
}  // namespace smartkv::anthropic

// Compares tokenizers built like those of published model families with the Hugging Face tokenizers library. The
// fixtures are made by tests/fixtures/tokenizers/make_families.py. scripts/check_tokenizers.sh runs this with other
// strings.
#include <cstdlib>
#include <cstring>

#include <gtest/gtest.h>

#include "tests/text/tokenizer_families.h"

namespace smartkv {
namespace {

using Json = nlohmann::json;

constexpr int64_t kGroup = 10;  // strings per hash

uint32_t fnv_step(const void* data, size_t size, uint32_t value) {
  for (size_t i = 0; i < size; ++i) value = (value ^ static_cast<const unsigned char*>(data)[i]) * 0x01000193u;
  return value;
}

TEST(TokenizerFamilies, EqualTheLibrary) {
  const char* given = std::getenv("SMARTKV_TOKENIZER_FAMILIES");
  const std::string folder = given != nullptr ? std::string(given) + "/" : kTokenizerFixtures;
  const std::string text_of_file = read_file(folder + "families.json");
  const Json file = Json::parse(text_of_file);
  const auto ordered = nlohmann::ordered_json::parse(text_of_file);
  const std::string hashes = read_file(folder + "families.hashes");
  size_t at = 0;
  for (const auto& [family, parts] : ordered["families"].items()) {
    const auto tokenizer = tokenizer_of_json(family_tokenizer_json(file, family).dump());
    FamilyStrings strings(file);
    const int64_t groups = file["counts"][family].get<int64_t>() / kGroup;
    int wrong = 0;
    for (int64_t group = 0; group < groups; ++group) {
      uint32_t value = 0x811c9dc5u;
      std::vector<std::string> texts;
      for (int64_t i = 0; i < kGroup; ++i) {
        const std::string text = strings.next();
        const std::vector<TokenId> ids = tokenizer->encode(text);
        value = fnv_step(ids.data(), ids.size() * sizeof(TokenId), value);
        const std::string decoded = utf8_repair(tokenizer->decode(ids));
        value = fnv_step(decoded.data(), decoded.size(), value);
        std::vector<TokenId> drawn(strings.number(6));
        for (TokenId& id : drawn)
          id = static_cast<TokenId>(strings.number(static_cast<uint64_t>(tokenizer->vocab_size())));
        const std::string drawn_text = utf8_repair(tokenizer->decode(drawn));
        value = fnv_step(drawn_text.data(), drawn_text.size(), value);
        texts.push_back(text);
      }
      ASSERT_LE(at + sizeof value, hashes.size());
      if (std::memcmp(&value, hashes.data() + at, sizeof value) != 0 && ++wrong == 1) {
        ADD_FAILURE() << family << ": strings " << group * kGroup << " and on: " << Json(texts);
      }
      at += sizeof value;
    }
    EXPECT_EQ(wrong, 0) << family << ": groups of " << groups;
  }
  EXPECT_EQ(at, hashes.size());
}

}  // namespace
}  // namespace smartkv

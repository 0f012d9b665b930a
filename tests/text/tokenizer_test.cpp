// Tokenizers against Hugging Face's and SentencePiece's own: fixtures made by tests/fixtures/tokenizers/make.py.
#include "engine/text/tokenizer.h"

#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <sstream>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

const std::string kFixtures = SMARTKV_FIXTURES "/tokenizers/";

std::string read_file(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

std::unique_ptr<Tokenizer> open_tokenizer(const std::string& name) {
  if (name == "smollm2") return load_tokenizer(SMARTKV_SOURCE "/models/SmolLM2-135M-Instruct.Q4_1.gguf");
  if (name == "sentencepiece") return load_sentencepiece(kFixtures + "sentencepiece.model", {});
  const TokenizerConfig config = name == "llama3" ? TokenizerConfig{"<|begin_of_text|>", "<|eot_id|>", ""} : TokenizerConfig{"<s>", "</s>", ""};
  return make_bpe_tokenizer(parse_tokenizer_json(nlohmann::json::parse(read_file(kFixtures + name + ".json")), config, name + ".json"));
}

// The strings of make.py's generated().
class Generator {
 public:
  Generator() {
    for (const auto& part : nlohmann::json::parse(read_file(kFixtures + "fragments.json"))) {
      parts_.emplace_back();
      for (const auto& byte : part) parts_.back() += static_cast<char>(byte.get<int>());
    }
  }
  std::string next() {
    std::string text;
    for (uint64_t n = number() % 14; n > 0; --n) {
      const uint64_t kind = number() % 10;
      if (kind < 8) {
        text += parts_[number() % parts_.size()];
      } else if (kind == 8) {
        text += static_cast<char>(32 + number() % 95);
      } else {
        utf8_append(text, static_cast<char32_t>(0xa0 + number() % 0xd700));
      }
    }
    return text;
  }

 private:
  uint64_t number() {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  uint64_t state_ = 1;
  std::vector<std::string> parts_;
};

uint32_t fnv(const std::vector<TokenId>& ids) {
  uint32_t value = 0x811c9dc5u;
  for (const TokenId id : ids) {
    for (int shift = 0; shift < 32; shift += 8) value = (value ^ ((static_cast<uint32_t>(id) >> shift) & 0xffu)) * 0x01000193u;
  }
  return value;
}

class Tokenizers : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = open_tokenizer(GetParam());
};

TEST_P(Tokenizers, EqualsTheReferenceOn20000Strings) {
  const std::string hashes = read_file(kFixtures + GetParam() + ".hashes");
  ASSERT_EQ(hashes.size(), 80000u);
  Generator generator;
  int wrong = 0;
  for (size_t i = 0; i < 20000; ++i) {
    const std::string text = generator.next();
    uint32_t expected;
    std::memcpy(&expected, hashes.data() + 4 * i, 4);
    const std::vector<TokenId> ids = tokenizer_->encode(text);
    if (fnv(ids) == expected) continue;
    if (++wrong <= 3) ADD_FAILURE() << "string " << i << " " << nlohmann::json(utf8_repair(text)) << " gives " << nlohmann::json(ids);
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(Tokenizers, ReadableCases) {
  int seen = 0;
  for (const auto& item : nlohmann::json::parse(read_file(kFixtures + "cases.json"))) {
    if (item["tokenizer"] != GetParam()) continue;
    ++seen;
    const std::vector<TokenId> ids = item["ids"];
    EXPECT_EQ(tokenizer_->encode(item["text"].get<std::string>()), ids) << item["text"];
    EXPECT_EQ(utf8_repair(tokenizer_->decode(ids)), item["decoded"].get<std::string>()) << item["text"];
  }
  EXPECT_EQ(seen, 12);
}

TEST_P(Tokenizers, TheStreamIsTheTokensBytes) {
  Generator generator;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = generator.next();
    StreamDecoder decoder(*tokenizer_, false);
    std::string streamed, bytes;
    for (const TokenId token : tokenizer_->encode(text)) {
      const std::string piece = decoder.push(token);
      EXPECT_TRUE(utf8_is_valid(piece));
      streamed += piece;
      bytes += tokenizer_->token_bytes(token);
    }
    streamed += decoder.flush();
    ASSERT_EQ(streamed, utf8_repair(bytes));
  }
}

INSTANTIATE_TEST_SUITE_P(All, Tokenizers, testing::Values("smollm2", "llama3", "llama2", "sentencepiece"));

TEST(Tokenizer, TextComesBack) {
  const auto tokenizer = open_tokenizer("smollm2");
  const std::string text = "Grüße, мир! 你好 \n\t 12345 \xf0\x9f\x98\x80 don't";
  EXPECT_EQ(tokenizer->decode(tokenizer->encode(text)), text);
  EXPECT_EQ(tokenizer->vocab_size(), 49152);
  EXPECT_EQ(tokenizer->token_content(*tokenizer->eos()), "<|im_end|>");
  EXPECT_EQ(tokenizer->token_id("<|im_end|>"), 2);
  EXPECT_EQ(tokenizer->token_id("no such token"), std::nullopt);
  EXPECT_THROW(tokenizer->token_bytes(49152), std::out_of_range);
  EXPECT_THROW(tokenizer->token_bytes(-1), std::out_of_range);
}

TEST(Tokenizer, SpecialTokensInTextAreTextWhenAskedFor) {
  const auto tokenizer = open_tokenizer("smollm2");
  EXPECT_EQ(tokenizer->encode("<|im_end|>").size(), 1u);
  const std::vector<TokenId> plain = tokenizer->encode("<|im_end|>", {true, false});
  EXPECT_GT(plain.size(), 1u);
  EXPECT_EQ(tokenizer->decode(plain), "<|im_end|>");
  const std::vector<TokenId> special = {2};
  EXPECT_EQ(tokenizer->decode(special), "");
  EXPECT_EQ(tokenizer->decode(special, false), "<|im_end|>");
}

TEST(Tokenizer, LongRunsTakeNoQuadraticTime) {
  for (const char* name : {"smollm2", "llama2"}) {
    const auto tokenizer = open_tokenizer(name);
    const std::string run(1 << 20, 'x');
    EXPECT_EQ(tokenizer->decode(tokenizer->encode(run, {false, true})), run);
  }
}

TEST(StreamDecoder, HoldsBackUnfinishedCharacters) {
  const auto tokenizer = open_tokenizer("smollm2");
  StreamDecoder decoder(*tokenizer);
  const std::vector<TokenId> ids = tokenizer->encode("\xf0\x9f\xa6\x99");  // a llama: several tokens
  ASSERT_GT(ids.size(), 1u);
  std::string text;
  for (size_t i = 0; i + 1 < ids.size(); ++i) EXPECT_EQ(decoder.push(ids[i]), "");
  EXPECT_EQ(decoder.push(ids.back()), "\xf0\x9f\xa6\x99");
  EXPECT_EQ(decoder.push(ids[0]), "");
  EXPECT_EQ(decoder.flush(), "\xef\xbf\xbd");
}

std::string error_of(const nlohmann::json& json) {
  try {
    make_bpe_tokenizer(parse_tokenizer_json(json, {}, "tokenizer.json"));
  } catch (const TokenizerError& error) {
    return error.what();
  }
  return "no error";
}

TEST(TokenizerJson, NamesWhatIsWrong) {
  const nlohmann::json good = nlohmann::json::parse(read_file(kFixtures + "llama3.json"));
  ASSERT_EQ(error_of(good), "no error");
  const auto with = [&](const char* pointer, const nlohmann::json& value) {
    nlohmann::json changed = good;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    return error_of(changed);
  };
  EXPECT_NE(with("/model/type", "WordPiece").find("model.type: \"WordPiece\" is not supported"), std::string::npos);
  EXPECT_NE(with("/model/vocab", 3).find("model.vocab: expected an object"), std::string::npos);
  EXPECT_NE(with("/model/merges/0", "zz").find("model.merges[0]"), std::string::npos);
  EXPECT_NE(with("/normalizer", {{"type", "Lowercase"}}).find("normalizer"), std::string::npos);
  EXPECT_NE(with("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(").find("pattern \"(\""), std::string::npos);
  EXPECT_NE(with("/added_tokens/0/id", -1).find("added_tokens[0].id: expected a token id"), std::string::npos);
  EXPECT_NE(with("/decoder", {{"type", "CTC"}}).find("decoder"), std::string::npos);
}

TEST(TokenizerJson, MutationsNeverCrash) {
  const std::string good = read_file(kFixtures + "llama3.json");
  std::mt19937 random(3);
  int refused = 0;
  for (int i = 0; i < 400; ++i) {
    std::string text = good;
    for (int n = 0; n < 4; ++n) text[random() % text.size()] = static_cast<char>(n % 2 == 0 ? "0123456789{}[],:\"ab"[random() % 19] : random() % 256);
    try {
      const nlohmann::json json = nlohmann::json::parse(text);
      make_bpe_tokenizer(parse_tokenizer_json(json, {}, "fuzz"))->encode("Hello world, 12345 <|eot_id|>");
    } catch (const nlohmann::json::exception&) {
      ++refused;
    } catch (const TokenizerError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
}

TEST(LoadTokenizer, NamesAFolderWithoutOne) {
  EXPECT_THROW(load_tokenizer(std::filesystem::path(SMARTKV_SOURCE) / "docs"), TokenizerError);
}

}  // namespace
}  // namespace smartkv

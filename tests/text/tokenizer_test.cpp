// Compares tokenizers with Hugging Face's and SentencePiece's own. The fixtures are made by
// tests/fixtures/tokenizers/make.py.
#include "engine/text/tokenizer.h"

#include <cstring>
#include <thread>

#include <gtest/gtest.h>

#include "engine/text/unicode_text.h"
#include "tests/text/tokenizer_fixtures.h"

namespace smartkv {
namespace {

uint32_t fnv_hash(const void* data, size_t size) {
  uint32_t value = 0x811c9dc5u;
  for (size_t i = 0; i < size; ++i) value = (value ^ static_cast<const unsigned char*>(data)[i]) * 0x01000193u;
  return value;
}

class Tokenizers : public testing::TestWithParam<const char*> {
 protected:
  std::unique_ptr<Tokenizer> tokenizer_ = open_tokenizer(GetParam());
};

TEST_P(Tokenizers, EqualsTheReferenceOnGeneratedStrings) {
  const std::string hashes = read_file(kTokenizerFixtures + GetParam() + ".hashes");
  ASSERT_GE(hashes.size(), 40000u);
  GeneratedStrings strings;
  int wrong = 0;
  for (size_t i = 0; i < hashes.size() / 8; ++i) {
    const std::string text = strings.next();
    uint32_t expected[2];  // hashes of the ids, and of the text to which they decode
    std::memcpy(expected, hashes.data() + 8 * i, 8);
    const std::vector<TokenId> ids = tokenizer_->encode(text);
    const std::string decoded = tokenizer_->decode(ids);
    const bool same = fnv_hash(ids.data(), ids.size() * sizeof(TokenId)) == expected[0] &&
                      fnv_hash(decoded.data(), decoded.size()) == expected[1];
    if (!same && ++wrong <= 3) {
      ADD_FAILURE() << "string " << i << " " << nlohmann::json(utf8_repair(text)) << " gives " << nlohmann::json(ids)
                    << " and back " << nlohmann::json(utf8_repair(decoded));
    }
  }
  EXPECT_EQ(wrong, 0);
}

TEST_P(Tokenizers, ReadableCases) {
  int seen = 0;
  for (const auto& item : nlohmann::json::parse(read_file(kTokenizerFixtures + "cases.json"))) {
    if (item["tokenizer"] != GetParam()) continue;
    ++seen;
    const std::vector<TokenId> ids = item["ids"];
    EXPECT_EQ(tokenizer_->encode(item["text"].get<std::string>()), ids) << item["text"];
    EXPECT_EQ(utf8_repair(tokenizer_->decode(ids)), item["decoded"].get<std::string>()) << item["text"];
  }
  EXPECT_EQ(seen, 12);
}

TEST_P(Tokenizers, TheStreamIsTheTokensBytes) {
  GeneratedStrings strings;
  for (int i = 0; i < 2000; ++i) {
    const std::string text = strings.next();
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

INSTANTIATE_TEST_SUITE_P(All, Tokenizers,
                         testing::Values("smollm2", "llama3", "deepseek_llm", "deepseek_coder", "llama2",
                                         "sentencepiece"));

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
  for (const char* name : {"smollm2", "llama3", "llama2"}) {
    const auto tokenizer = open_tokenizer(name);
    for (const char character : {'x', ' ', '7'}) {
      const std::string run(1 << 20, character);
      EXPECT_EQ(tokenizer->decode(tokenizer->encode(run, {false, true})), run);
    }
  }
}

// Combining marks in an order that normalization must reverse.
TEST(Tokenizer, LongRunsOfMarksTakeNoQuadraticTime) {
  std::string run = "a", sorted = "a";
  for (int i = 0; i < 200'000; ++i) run += "\u0301\u0327";
  for (int i = 0; i < 200'000; ++i) sorted += "\u0327";
  for (int i = 0; i < 200'000; ++i) sorted += "\u0301";
  EXPECT_EQ(normal_form(run, NormalForm::kNfd), sorted);
}

// A pattern would have to remember every position of this run.
TEST(Tokenizer, ARunThatIsTooLongIsAnError) {
  const auto tokenizer = open_tokenizer("llama3");
  EXPECT_THROW(tokenizer->encode(std::string(5 << 20, ' ')), TokenizerError);
}

TEST(Tokenizer, ThreadsGetTheSame) {
  const auto tokenizer = open_tokenizer("smollm2");
  std::vector<std::vector<TokenId>> ids(4);
  std::vector<std::thread> threads;
  for (std::vector<TokenId>& mine : ids) {
    threads.emplace_back([&mine, &tokenizer] {
      GeneratedStrings strings;
      for (int i = 0; i < 500; ++i) {
        for (const TokenId id : tokenizer->encode(strings.next())) mine.push_back(id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::vector<TokenId>& other : ids) EXPECT_EQ(other, ids[0]);
}

TEST(Tokenizer, SentencePieceTakesBosAndEosFromItsConfig) {
  TokenizerConfig config{"<s>", "</s>"};
  config.add_bos = false;
  config.add_eos = true;
  const auto tokenizer = load_sentencepiece(kTokenizerFixtures + "sentencepiece.model", config);
  const std::vector<TokenId> ids = tokenizer->encode("Hello");
  EXPECT_NE(ids.front(), tokenizer->bos());
  EXPECT_EQ(ids.back(), tokenizer->eos());
  EXPECT_TRUE(tokenizer->is_special(*tokenizer->token_id("<unk>")));
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

TEST(LoadTokenizer, NamesAFolderWithoutOne) {
  EXPECT_THROW(load_tokenizer(std::filesystem::path(SMARTKV_SOURCE) / "docs"), TokenizerError);
}

}  // namespace
}  // namespace smartkv

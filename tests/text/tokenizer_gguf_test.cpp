// Tokenizers in GGUF metadata. The fixtures' tokenizers, written into GGUF, must give the same ids as from their files.
#include <cstring>
#include <limits>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sentencepiece_processor.h>

#include "engine/weights/gguf.h"
#include "engine/weights/weights.h"
#include "tests/text/tokenizer_families.h"

namespace smartkv {
namespace {

using testing::HasSubstr;

// A GGUF file with metadata only.
class GgufMetadata {
 public:
  GgufMetadata& add(const std::string& key, const std::string& text) { return head(key, 8).string(text).counted(); }
  GgufMetadata& add(const std::string& key, uint32_t number) { return head(key, 4).number(number).counted(); }
  GgufMetadata& add(const std::string& key, int32_t number) { return head(key, 5).number(number).counted(); }
  GgufMetadata& add(const std::string& key, bool value) { return head(key, 7).number(uint8_t{value}).counted(); }
  GgufMetadata& add(const std::string& key, const std::vector<std::string>& texts) {
    head(key, 9).number(uint32_t{8}).number(uint64_t{texts.size()});
    for (const std::string& text : texts) string(text);
    return counted();
  }
  GgufMetadata& add(const std::string& key, const std::vector<float>& values) { return array(key, 6, values); }
  GgufMetadata& add(const std::string& key, const std::vector<int32_t>& values) { return array(key, 5, values); }

  std::string file() const {
    GgufMetadata whole;
    whole.number(uint32_t{0x46554747}).number(uint32_t{3}).number(uint64_t{0}).number(count_);
    return whole.bytes_ + bytes_;
  }
  std::unique_ptr<Tokenizer> load() const { return load_bytes(file()); }
  static std::unique_ptr<Tokenizer> load_bytes(const std::string& bytes) {
    return load_tokenizer_gguf(GgufFile::parse(std::as_bytes(std::span(bytes)), "test.gguf"));
  }
  std::string error() const {
    try {
      load();
    } catch (const TokenizerError& error) {
      return error.what();
    }
    return "no error";
  }

 private:
  template <typename T>
  GgufMetadata& number(T value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof value);
    return *this;
  }
  GgufMetadata& string(const std::string& text) {
    number(uint64_t{text.size()});
    bytes_ += text;
    return *this;
  }
  GgufMetadata& head(const std::string& key, uint32_t type) { return string("tokenizer.ggml." + key).number(type); }
  GgufMetadata& counted() {
    ++count_;
    return *this;
  }
  template <typename T>
  GgufMetadata& array(const std::string& key, uint32_t type, const std::vector<T>& values) {
    head(key, 9).number(type).number(uint64_t{values.size()});
    for (const T value : values) number(value);
    return counted();
  }

  std::string bytes_;
  uint64_t count_ = 0;
};

TEST(TokenizerGguf, SentencePieceEqualsTheLibrary) {
  sentencepiece::SentencePieceProcessor processor;
  ASSERT_TRUE(processor.Load(kTokenizerFixtures + "sentencepiece.model").ok());
  std::vector<std::string> tokens;
  std::vector<float> scores;
  std::vector<int32_t> types;
  for (int id = 0; id < processor.GetPieceSize(); ++id) {
    tokens.push_back(processor.IdToPiece(id));
    scores.push_back(processor.GetScore(id));
    types.push_back(processor.IsUnknown(id) ? 2 : processor.IsControl(id) ? 3 : processor.IsByte(id) ? 6 : 1);
  }
  const auto tokenizer = GgufMetadata()
                             .add("model", std::string("llama"))
                             .add("tokens", tokens)
                             .add("scores", scores)
                             .add("token_type", types)
                             .add("bos_token_id", 1u)
                             .add("eos_token_id", 2u)
                             .load();
  const auto reference = open_tokenizer("sentencepiece");
  GeneratedStrings strings;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = strings.next();
    const std::vector<TokenId> ids = reference->encode(text);
    ASSERT_EQ(tokenizer->encode(text), ids) << nlohmann::json(utf8_repair(text));
    ASSERT_EQ(tokenizer->decode(ids), reference->decode(ids));
    ASSERT_EQ(tokenizer->decode(ids, false), reference->decode(ids, false));
  }
}

TEST(TokenizerGguf, EqualScoresMergeFromTheLeft) {
  const auto tokenizer = GgufMetadata()
                             .add("model", std::string("llama"))
                             .add("tokens", std::vector<std::string>{"<unk>", "a", "aa", "aaa"})
                             .add("scores", std::vector<float>{0, -9, -1, -2})
                             .add("token_type", std::vector<int32_t>{2, 1, 1, 1})
                             .add("add_space_prefix", false)
                             .add("add_bos_token", false)
                             .load();
  // "aa" + "aa" + "a": both "aa" + "a" and "a" + "aa" make "aaa".
  EXPECT_EQ(tokenizer->encode("aaaaa"), (std::vector<TokenId>{2, 3}));
  EXPECT_EQ(tokenizer->encode("aaa"), (std::vector<TokenId>{3}));
  EXPECT_EQ(tokenizer->encode(" b<unk>"), (std::vector<TokenId>{0, 0}));
  EXPECT_TRUE(tokenizer->is_special(0));
}

struct ByteLevelCase {
  const char *name, *pre;
};

class ByteLevelGguf : public testing::TestWithParam<ByteLevelCase> {};

TEST_P(ByteLevelGguf, EqualsItsTokenizerJson) {
  nlohmann::json json = nlohmann::json::parse(read_file(kTokenizerFixtures + std::string(GetParam().name) + ".json"));
  std::vector<std::string> tokens(json["model"]["vocab"].size()), merges;
  for (const auto& [content, id] : json["model"]["vocab"].items()) tokens[id.get<size_t>()] = content;
  for (const auto& pair : json["model"]["merges"]) {
    merges.push_back(pair[0].get<std::string>() + " " + pair[1].get<std::string>());
  }
  nlohmann::json kept;  // GGUF has no single_word, lstrip and rstrip
  std::vector<int32_t> types(tokens.size(), 1);
  for (const auto& token : json["added_tokens"]) {
    if (!token["special"].get<bool>()) continue;
    kept.push_back(token);
    ASSERT_EQ(token["id"].get<size_t>(), tokens.size());
    tokens.push_back(token["content"].get<std::string>());
    types.push_back(3);
  }
  json["added_tokens"] = kept;
  const auto reference = tokenizer_of_json(json.dump());
  const auto tokenizer = GgufMetadata()
                             .add("model", std::string("gpt2"))
                             .add("pre", std::string(GetParam().pre))
                             .add("tokens", tokens)
                             .add("token_type", types)
                             .add("merges", merges)
                             .add("bos_token_id", uint32_t(*reference->token_id("<|begin_of_text|>")))
                             .load();
  GeneratedStrings strings;
  for (int i = 0; i < 5000; ++i) {
    const std::string text = strings.next();
    const std::vector<TokenId> ids = reference->encode(text);
    ASSERT_EQ(tokenizer->encode(text), ids) << nlohmann::json(utf8_repair(text));
    ASSERT_EQ(tokenizer->decode(ids), reference->decode(ids));
  }
}

INSTANTIATE_TEST_SUITE_P(PreTokenizers, ByteLevelGguf,
                         testing::Values(ByteLevelCase{"llama3", "llama-bpe"},
                                         ByteLevelCase{"deepseek_llm", "deepseek-llm"},
                                         ByteLevelCase{"deepseek_coder", "deepseek-coder"}),
                         [](const auto& it) { return std::string(it.param.name); });

// The name of a pre-tokenizer stands for the steps in the tokenizer.json of its models.
TEST(TokenizerGguf, PreTokenizersEqualTheirFamilies) {
  const nlohmann::json file = nlohmann::json::parse(read_file(kTokenizerFixtures + "families.json"));
  const std::pair<const char*, const char*> families[] = {
      {"qwen2", "qwen2"},           {"gpt-4o", "gpt_oss"},          {"llama4", "phi4_mini"},
      {"tekken", "mistral_nemo"},   {"deepseek-v3", "deepseek_v3"}, {"olmo", "olmo"},
      {"smollm", "smollm2_granite"}};
  for (const auto& [pre, family] : families) {
    nlohmann::json json = family_tokenizer_json(file, family);
    std::vector<std::string> tokens(json["model"]["vocab"].size());
    for (const auto& [content, id] : json["model"]["vocab"].items()) tokens[id.get<size_t>()] = content;
    json["added_tokens"] = nlohmann::json::array();  // GGUF has no single_word
    json["model"]["ignore_merges"] = std::string(pre) == "tekken";
    const auto reference = tokenizer_of_json(json.dump());
    const auto tokenizer = GgufMetadata()
                               .add("model", std::string("gpt2"))
                               .add("pre", std::string(pre))
                               .add("tokens", tokens)
                               .add("merges", json["model"]["merges"].get<std::vector<std::string>>())
                               .load();
    FamilyStrings strings(file);
    for (int i = 0; i < 1000; ++i) {
      const std::string text = strings.next();
      ASSERT_EQ(tokenizer->encode(text), reference->encode(text)) << pre << nlohmann::json(text);
    }
  }
}

TEST(TokenizerGguf, PreTokenizersCutNumbersAsTheirModelsDo) {
  const auto ids = [](const std::string& pre) {
    return GgufMetadata()
        .add("model", std::string("gpt2"))
        .add("pre", pre)
        .add("tokens", std::vector<std::string>{"1", "2", "3", "12", "123", "1231"})
        .add("merges", std::vector<std::string>{"1 2", "12 3", "123 1"})
        .load()
        ->encode("1231");
  };
  EXPECT_EQ(ids("default"), (std::vector<TokenId>{5}));
  for (const char* pre : {"llama-bpe", "dbrx", "smaug-bpe"}) EXPECT_EQ(ids(pre), (std::vector<TokenId>{4, 0})) << pre;
  for (const char* pre : {"qwen2", "deepseek-r1-qwen", "refact", "deepseek-llm", "deepseek-coder"})
    EXPECT_EQ(ids(pre), (std::vector<TokenId>{0, 1, 2, 0})) << pre;
}

// Types of tokens in GGUF: 1 normal, 3 control, 4 user-defined.
TEST(TokenizerGguf, FindsTheTokensThatEndAnAnswer) {
  const std::vector<std::string> tokens = {"a", "<|im_end|>", "<end_of_turn>", "<|eom_id|>", "b", "c", "d"};
  const auto base = [&] {
    return GgufMetadata()
        .add("model", std::string("gpt2"))
        .add("pre", std::string("gpt-2"))
        .add("tokens", tokens)
        .add("token_type", std::vector<int32_t>{1, 1, 4, 3, 1, 1, 1})
        .add("merges", std::vector<std::string>{});
  };
  auto tokenizer = base().add("eos_token_id", 0u).load();
  EXPECT_THAT(tokenizer->end_tokens(), testing::ElementsAre(0, 1, 2, 3));
  tokenizer = base().add("eot_token_id", 4u).add("eom_token_id", 5u).add("fim_pad_token_id", 6u).load();
  EXPECT_THAT(tokenizer->end_tokens(), testing::ElementsAre(1, 2, 3, 4, 5, 6));
  // Normal and user-defined end tokens are found in prompts that may hold special tokens, and are not shown as text.
  EXPECT_EQ(tokenizer->encode("a<|im_end|><end_of_turn>"), (std::vector<TokenId>{0, 1, 2}));
  EXPECT_EQ(tokenizer->decode(std::vector<TokenId>{0, 1, 2, 3}), "a");
  EXPECT_TRUE(tokenizer->is_special(1) && tokenizer->is_special(2));
}

TEST(TokenizerGguf, AnEndTokenBeyondTheVocabularyIsIgnored) {
  const auto base = [] {
    return GgufMetadata()
        .add("model", std::string("gpt2"))
        .add("pre", std::string("gpt-2"))
        .add("tokens", std::vector<std::string>{"a", "<|im_end|>", "<|fim_pad|>"})
        .add("merges", std::vector<std::string>{});
  };
  for (const std::string purpose : {"eot", "eom", "fim_pad", "fim_rep", "fim_sep"}) {
    const std::string key = purpose + "_token_id";
    const auto tokenizer = base().add(key, 3u).load();
    EXPECT_THAT(tokenizer->end_tokens(), testing::ElementsAre(1, 2)) << key;  // found by their names
    EXPECT_THAT(tokenizer->warnings(),
                testing::ElementsAre("test.gguf: key \"tokenizer.ggml." + key +
                                     "\": expected a token from 0 to 2, found 3; the key is ignored"));
    EXPECT_THAT(base().add(key, -2).load()->warnings(), testing::ElementsAre(HasSubstr("found -2"))) << key;
  }
  // Some converters write -1 for a token that does not exist.
  for (const std::string key : {"bos_token_id", "eos_token_id", "eot_token_id", "eom_token_id", "fim_pad_token_id"}) {
    for (const auto& tokenizer : {base().add(key, -1).load(), base().add(key, UINT32_MAX).load()}) {
      EXPECT_THAT(tokenizer->end_tokens(), testing::ElementsAre(1, 2)) << key;
      EXPECT_THAT(tokenizer->warnings(), testing::IsEmpty()) << key;
      EXPECT_FALSE(tokenizer->bos() || tokenizer->eos()) << key;
    }
  }
}

// "</s>" is a word of Qwen's vocabulary. It ends an answer, but a prompt must be tokenized as Qwen's own tokenizer does
// it.
TEST(TokenizerGguf, AnEndTokenThatMergesMakeIsTextInAPrompt) {
  const auto tokenizer = GgufMetadata()
                             .add("model", std::string("gpt2"))
                             .add("pre", std::string("qwen2"))
                             .add("tokens", std::vector<std::string>{"<", "/", "s", ">", "</", "</s", "</s>"})
                             .add("merges", std::vector<std::string>{"< /", "</ s", "</s >"})
                             .load();
  EXPECT_THAT(tokenizer->end_tokens(), testing::ElementsAre(6));
  EXPECT_TRUE(tokenizer->is_special(6));
  EXPECT_EQ(tokenizer->encode("</s>"), (std::vector<TokenId>{4, 2, 3}));
}

TEST(TokenizerGguf, WarnsOfAFileThatDoesNotSayHowItsTextIsCut) {
  const auto base = [] {
    return GgufMetadata()
        .add("model", std::string("gpt2"))
        .add("tokens", std::vector<std::string>{"a", "b", "ab"})
        .add("merges", std::vector<std::string>{"a b"});
  };
  EXPECT_THAT(base().load()->warnings(),
              testing::ElementsAre(HasSubstr("test.gguf: key \"tokenizer.ggml.pre\" is missing")));
  EXPECT_THAT(base().add("pre", std::string("gpt-2")).load()->warnings(), testing::IsEmpty());
}

TEST(TokenizerGguf, NamesWhatIsWrong) {
  const std::vector<std::string> tokens = {"a", "b", "ab"};
  const auto base = [&](const std::string& model) { return GgufMetadata().add("model", model).add("tokens", tokens); };
  const auto gpt2 = [&](const std::string& merge) {
    return base("gpt2").add("merges", std::vector<std::string>{merge});
  };
  EXPECT_EQ(gpt2("a b").error(), "no error");
  EXPECT_THAT(GgufMetadata().error(), HasSubstr("test.gguf: key \"tokenizer.ggml.tokens\""));
  EXPECT_THAT(base("bert").error(), HasSubstr("expected \"gpt2\" or \"llama\", found \"bert\""));
  EXPECT_THAT(base("gpt2").error(), HasSubstr("key \"tokenizer.ggml.merges\""));
  EXPECT_THAT(gpt2("a z").error(), HasSubstr("found \"a z\""));
  EXPECT_THAT(gpt2("b a").error(), HasSubstr("expected the merged token in the vocabulary"));
  EXPECT_THAT(gpt2("a b").add("pre", std::string("unheard-of")).error(), HasSubstr("found \"unheard-of\""));
  EXPECT_THAT(gpt2("a b").add("eos_token_id", 3u).error(), HasSubstr("expected a token from 0 to 2, found 3"));
  EXPECT_THAT(gpt2("a b").add("token_type", std::vector<int32_t>{1}).error(), HasSubstr("expected 3 types, found 1"));
  EXPECT_THAT(base("llama").error(), HasSubstr("expected 3 scores, found none"));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_THAT(base("llama").add("scores", std::vector<float>{0, nan, 0}).error(), HasSubstr("found NaN at 1"));
}

TEST(TokenizerGguf, MutatedBytesNeverCrash) {
  const std::vector<std::string> tokens = {"<unk>", "<s>", "a", "b", "ab", "<0x41>"};
  const std::string good[] = {GgufMetadata()
                                  .add("model", std::string("llama"))
                                  .add("tokens", tokens)
                                  .add("scores", std::vector<float>{0, 0, -3, -2, -1, 0})
                                  .add("token_type", std::vector<int32_t>{2, 3, 1, 1, 1, 6})
                                  .add("bos_token_id", 1u)
                                  .file(),
                              GgufMetadata()
                                  .add("model", std::string("gpt2"))
                                  .add("pre", std::string("smollm"))
                                  .add("tokens", tokens)
                                  .add("merges", std::vector<std::string>{"a b"})
                                  .add("eos_token_id", 1u)
                                  .file()};
  std::mt19937 random(11);
  int refused = 0, taken = 0;
  for (int i = 0; i < 4000; ++i) {
    std::string bytes = good[i % 2];
    for (int n = 0; n < 2; ++n) bytes[random() % bytes.size()] = static_cast<char>(random() % 256);
    try {
      const auto tokenizer = GgufMetadata::load_bytes(bytes);
      for (const TokenId id : tokenizer->encode("ab <s> ab")) tokenizer->token_bytes(id);
      ++taken;
    } catch (const TokenizerError&) {
      ++refused;
    } catch (const ModelError&) {
      ++refused;
    }
  }
  EXPECT_GT(refused, 0);
  EXPECT_GT(taken, 0);
}

}  // namespace
}  // namespace smartkv

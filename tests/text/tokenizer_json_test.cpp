// tokenizer.json: the meaning of its steps, and errors that name the fault.
#include "engine/text/tokenizer_json.h"

#include <algorithm>
#include <random>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/text/tokenizer_fixtures.h"

namespace smartkv {
namespace {

using Json = nlohmann::json;
using testing::ElementsAre;
using testing::HasSubstr;

Json fixture(const std::string& name) { return Json::parse(read_file(kTokenizerFixtures + name + ".json")); }

std::string tokenizer_error(const std::string& text) {
  try {
    tokenizer_of_json(text);
  } catch (const TokenizerError& error) {
    return error.what();
  }
  return "no error";
}

std::string tokenizer_error_with(const Json& good, const char* pointer, const Json& value) {
  Json changed = good;
  changed[Json::json_pointer(pointer)] = value;
  return tokenizer_error(changed.dump());
}

// Returns a tokenizer.json with a byte-level vocabulary of the letters a to e, the space, "ab" and "\u0120a".
Json tiny() {
  return {{"model",
           {{"type", "BPE"},
            {"vocab", {{"a", 0}, {"b", 1}, {"c", 2}, {"d", 3}, {"e", 4}, {"\u0120", 5}, {"ab", 6}, {"\u0120a", 7}}},
            {"merges", {"a b", "\u0120 a"}}}},
          {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
          {"decoder", {{"type", "ByteLevel"}}}};
}

Json added(int id, const std::string& content, bool special, bool single_word = false) {
  return {{"id", id}, {"content", content}, {"special", special}, {"single_word", single_word}, {"normalized", false}};
}

TEST(TokenizerJson, NamesWhatIsWrong) {
  const Json good = fixture("llama3"), spm = fixture("llama2");
  ASSERT_EQ(tokenizer_error(good.dump()), "no error");
  ASSERT_EQ(tokenizer_error(spm.dump()), "no error");
  EXPECT_THAT(tokenizer_error_with(good, "/model/type", "WordPiece"),
              HasSubstr("model.type: \"WordPiece\" is not supported"));
  EXPECT_THAT(tokenizer_error_with(good, "/model/vocab", 3), HasSubstr("model.vocab: expected an object"));
  EXPECT_THAT(tokenizer_error_with(good, "/model/vocab/a", 1 << 30), HasSubstr("\"a\": expected a token id below"));
  EXPECT_THAT(tokenizer_error_with(good, "/model/merges/0", "zz"), HasSubstr("model.merges[0]"));
  EXPECT_THAT(tokenizer_error_with(good, "/normalizer", {{"type", "Unheard"}}),
              HasSubstr("normalizer: {\"type\":\"Unheard\"} is not supported"));
  EXPECT_THAT(
      tokenizer_error_with(good, "/pre_tokenizer/pretokenizers/0/pattern/Regex", "("),
      HasSubstr("pre_tokenizer.pretokenizers[0].pattern.Regex: pattern \"(\": end pattern with unmatched parenthesis"));
  EXPECT_THAT(tokenizer_error_with(good, "/pre_tokenizer/pretokenizers/0/behavior", "Glued"),
              HasSubstr("pre_tokenizer.pretokenizers[0].behavior: \"Glued\" is not supported"));
  EXPECT_THAT(tokenizer_error_with(good, "/pre_tokenizer/pretokenizers/1", {{"type", "FixedLength"}, {"length", 0}}),
              HasSubstr("pre_tokenizer.pretokenizers[1].length: expected a length of at least 1, found 0"));
  EXPECT_THAT(tokenizer_error_with(good, "/post_processor/processors/0", good["post_processor"]["processors"][1]),
              HasSubstr("post_processor.processors[1]: a second processor that adds tokens is not supported"));
  EXPECT_THAT(tokenizer_error_with(good, "/added_tokens/0/id", -1),
              HasSubstr("added_tokens[0].id: expected a token id"));
  EXPECT_THAT(
      tokenizer_error_with(good, "/post_processor/processors/1/special_tokens/<|begin_of_text|>/ids/0", 900'000),
      HasSubstr("ids[0]: expected a token id, found 900000"));
  EXPECT_THAT(tokenizer_error_with(good, "/decoder", nullptr), HasSubstr("decoder: expected a decoder"));
  EXPECT_THAT(tokenizer_error_with(good, "/decoder", {{"type", "CTC"}}),
              HasSubstr("decoder: {\"type\":\"CTC\"} is not supported"));
  EXPECT_THAT(tokenizer_error_with(spm, "/decoder/decoders/3/start", -1),
              HasSubstr("decoder.decoders[3].start: expected a whole number"));
  EXPECT_THAT(tokenizer_error_with(spm, "/decoder/decoders/3/content", "ab"),
              HasSubstr("decoder.decoders[3].content: expected a string of one character"));
  const Json precompiled = {{"type", "Precompiled"}, {"precompiled_charsmap", "?"}};
  EXPECT_THAT(tokenizer_error_with(good, "/normalizer", precompiled),
              HasSubstr("normalizer.precompiled_charsmap: expected base64"));
  EXPECT_THAT(tokenizer_error_with(spm, "/model/unk_token", "none"),
              HasSubstr("model.unk_token: is not in the vocabulary"));
  EXPECT_THAT(tokenizer_error("{"), HasSubstr("tokenizer.json: "));
  EXPECT_THAT(tokenizer_error(std::string(100'000, '[')), HasSubstr("nested deeper than"));
}

TEST(TokenizerJson, AnEntryThatBpeCannotWriteIsReachedAsAnAddedTokenOnly) {
  Json json = tiny();
  json["model"]["vocab"][" a"] = 8;  // the bytes of "\u0120a" in another spelling
  EXPECT_THAT(tokenizer_of_json(json.dump())->encode(" a"), ElementsAre(7));
  json["added_tokens"] = {added(8, " a", false)};
  const auto tokenizer = tokenizer_of_json(json.dump());
  EXPECT_THAT(tokenizer->encode("b ab"), ElementsAre(1, 8, 1));
  EXPECT_EQ(tokenizer->decode(tokenizer->encode("b ab")), "b ab");
}

TEST(TokenizerJson, ATokenInsideAWordHidesShorterOnes) {
  Json json = tiny();
  json["added_tokens"] = {added(8, "cde", false, true), added(9, "de", false)};
  const auto tokenizer = tokenizer_of_json(json.dump());
  EXPECT_THAT(tokenizer->encode("a cde"), ElementsAre(0, 5, 8));
  EXPECT_THAT(tokenizer->encode("acde"), ElementsAre(0, 2, 3, 4));
  EXPECT_THAT(tokenizer->encode("ade"), ElementsAre(0, 9));
}

TEST(TokenizerJson, PrefixSpaceComesBeforeEveryPiece) {
  Json json = tiny();
  json["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Split"}, {"pattern", {{"String", "c"}}}, {"behavior", "Isolated"}, {"invert", false}},
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}}};
  EXPECT_THAT(tokenizer_of_json(json.dump())->encode("acab"), ElementsAre(7, 5, 2, 5, 6));
}

TEST(TokenizerJson, MutatedBytesNeverCrash) {
  std::mt19937 random(3);
  for (const char* name : {"llama3", "llama2"}) {
    const std::string good = read_file(kTokenizerFixtures + name + ".json");
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
      std::string text = good;
      for (int n = 0; n < 4; ++n) {
        text[random() % text.size()] =
            static_cast<char>(n % 2 == 0 ? "0123456789{}[],:\"ab"[random() % 19] : random() % 256);
      }
      try {
        tokenizer_of_json(text)->encode("Hello world, 12345 <|eot_id|>");
      } catch (const TokenizerError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
  }
}

// Valid JSON with another value somewhere gets past the parser.
TEST(TokenizerJson, MutatedValuesNeverCrash) {
  const Json values = {nullptr,
                       true,
                       -1,
                       3,
                       1'000'000,
                       1.5,
                       "",
                       "a b",
                       "\u2581",
                       "ByteLevel",
                       "(",
                       "\\s",
                       Json::array(),
                       Json::object(),
                       {1, "a"},
                       {{"type", "Sequence"}},
                       {{"String", " "}}};
  std::mt19937 random(7);
  for (const char* name : {"llama3", "llama2"}) {
    const Json good = fixture(name);
    std::vector<std::string> places;  // all except most of the vocabulary and merges
    const Json flat = good.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      const bool bulk = pointer.starts_with("/model/vocab") || pointer.starts_with("/model/merges");
      if (bulk && random() % 20 != 0) continue;
      std::string place = pointer;
      while (!place.empty()) {
        places.push_back(place);
        place.resize(place.rfind('/'));
      }
    }
    int refused = 0;
    for (int i = 0; i < 300; ++i) {
      Json json = good;
      for (int n = 0; n < 2; ++n) {
        try {
          json.at(Json::json_pointer(places[random() % places.size()])) = values[random() % values.size()];
        } catch (const Json::exception&) {  // the first change removed this place
        }
      }
      try {
        const auto tokenizer = tokenizer_of_json(json.dump());
        for (const TokenId id : tokenizer->encode("Hello world, 12345 <|eot_id|>")) tokenizer->token_bytes(id);
      } catch (const TokenizerError&) {
        ++refused;
      }
    }
    EXPECT_GT(refused, 0);
  }
}

// Sets every field of every step to values of other kinds.
TEST(TokenizerJson, AWrongValueIsAnErrorThatNamesItsPart) {
  const Json values = {nullptr,  true,           -1, 3, 1.5, "", "x", "(", "a b", Json::array(), Json::object(),
                       {1, "a"}, {{"type", "x"}}};
  const Json file = Json::parse(read_file(kTokenizerFixtures + "families.json"));
  int refused = 0, taken = 0;
  for (const auto& [family, parts] : file["families"].items()) {
    Json good = parts;
    good["model"] = tiny()["model"];
    good["added_tokens"] = {added(8, "<x>", true)};
    if (!good["post_processor"].is_null()) {
      good["post_processor"] = {{"type", "TemplateProcessing"},
                                {"single", {{{"SpecialToken", {{"id", "<x>"}}}}, {{"Sequence", {{"id", "A"}}}}}},
                                {"special_tokens", {{"<x>", {{"ids", {8}}}}}}};
    }
    ASSERT_EQ(tokenizer_error(good.dump()), "no error") << family;
    std::set<std::string> places;
    const Json flat = good.flatten();
    for (const auto& [pointer, value] : flat.items()) {
      for (std::string place = pointer; !place.empty(); place.resize(place.rfind('/'))) places.insert(place);
    }
    for (const std::string& place : places) {
      for (const Json& value : values) {
        Json json = good;
        json[Json::json_pointer(place)] = value;
        try {
          const auto tokenizer = tokenizer_of_json(json.dump());
          for (const TokenId id : tokenizer->encode("ab <x>c\u00e9 12")) tokenizer->token_bytes(id);
          for (TokenId id = 0; id < std::min<int64_t>(tokenizer->vocab_size(), 20); ++id)
            tokenizer->decode(std::vector{id, id}, false);
          ++taken;
        } catch (const TokenizerError& error) {
          const std::string part = place.substr(1, place.find('/', 1) - 1);
          EXPECT_THAT(error.what(), HasSubstr("tokenizer.json: ")) << place;
          // A post-processor adds tokens that other parts define.
          if (!place.starts_with("/model") && !place.starts_with("/added_tokens")) {
            EXPECT_THAT(error.what(), HasSubstr(part)) << place << value;
          }
          ++refused;
        }
      }
    }
  }
  EXPECT_GT(refused, 1000);
  EXPECT_GT(taken, 100);
}

}  // namespace
}  // namespace smartkv

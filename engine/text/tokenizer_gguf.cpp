// Tokenizers that are embedded in GGUF files: byte-level BPE ("gpt2") and SentencePiece BPE ("llama").
#include <algorithm>
#include <cmath>
#include <unordered_map>

#include "engine/text/bpe_tokenizer.h"
#include "engine/text/end_tokens.h"
#include "engine/text/gguf_pre_tokenizer.h"
#include "engine/weights/gguf.h"

namespace smartkv {
namespace {

enum TokenType : int64_t { kNormal = 1, kUnknown = 2, kControl = 3, kUserDefined = 4, kUnused = 5, kByte = 6 };

[[noreturn]] void fail(const GgufFile& file, std::string_view key, const std::string& message) {
  throw TokenizerError(file.name() + ": key \"" + std::string(key) + "\": " + message);
}

// Returns the token that `key` names. Returns nullopt if the file lacks the key, or if the value is -1 as a signed or
// an unsigned 32-bit integer, which some converters write for none. For an id beyond the vocabulary it throws
// TokenizerError, or, if `warnings` is not null, adds a warning and returns nullopt.
std::optional<TokenId> token_of(const GgufFile& file, std::string_view key, size_t vocab,
                                std::vector<std::string>* warnings = nullptr) {
  const std::optional<int64_t> id = file.get_int(key);
  if (!id || *id == -1 || *id == UINT32_MAX) return std::nullopt;
  if (*id >= 0 && *id < static_cast<int64_t>(vocab)) return static_cast<TokenId>(*id);
  const std::string message =
      "expected a token from 0 to " + std::to_string(vocab - 1) + ", found " + std::to_string(*id);
  if (warnings == nullptr) fail(file, key, message);
  warnings->push_back(file.name() + ": key \"" + std::string(key) + "\": " + message + "; the key is ignored");
  return std::nullopt;
}

void read_gguf_merges(const GgufFile& file, BpeTokenizerSpec& spec) {
  constexpr const char* kKey = "tokenizer.ggml.merges";
  const std::vector<std::string>* merges = file.get_strings(kKey);
  if (merges == nullptr) fail(file, kKey, "expected an array of strings, found nothing");
  std::unordered_map<std::string_view, TokenId> ids;
  for (size_t id = 0; id < spec.contents.size(); ++id) ids.emplace(spec.contents[id], static_cast<TokenId>(id));
  for (const std::string& merge : *merges) {
    const size_t space = merge.find(' ', 1);
    const auto left = space == std::string::npos ? ids.end() : ids.find(std::string_view(merge).substr(0, space));
    const auto right = left == ids.end() ? ids.end() : ids.find(std::string_view(merge).substr(space + 1));
    if (right == ids.end()) fail(file, kKey, "expected two tokens of the vocabulary, found \"" + merge + "\"");
    spec.merges.push_back({left->second, right->second, static_cast<int32_t>(spec.merges.size())});
  }
}

// Derives merges from the scores of the pieces. SentencePiece merges the pair whose result has the best score; of equal
// scores, the leftmost pair.
void make_merges_of_scores(const GgufFile& file, const std::vector<int64_t>* types, BpeTokenizerSpec& spec) {
  constexpr const char* kKey = "tokenizer.ggml.scores";
  const std::vector<double>* scores = file.get_floats(kKey);
  if (scores == nullptr || scores->size() != spec.contents.size()) {
    fail(file, kKey,
         "expected " + std::to_string(spec.contents.size()) + " scores, found " +
             (scores == nullptr ? "none" : std::to_string(scores->size())));
  }
  std::unordered_map<std::string_view, TokenId> ids;
  std::vector<TokenId> by_score;
  for (size_t id = 0; id < spec.contents.size(); ++id) {
    if (std::isnan((*scores)[id])) fail(file, kKey, "expected numbers, found NaN at " + std::to_string(id));
    const int64_t type = types == nullptr ? kNormal : (*types)[id];
    if (type == kControl || type == kUnknown || type == kByte) continue;  // Never made by merging characters.
    ids.emplace(spec.contents[id], static_cast<TokenId>(id));
    by_score.push_back(static_cast<TokenId>(id));
  }
  std::stable_sort(by_score.begin(), by_score.end(), [&](TokenId a, TokenId b) { return (*scores)[a] > (*scores)[b]; });
  int32_t rank = 0;
  for (size_t i = 0; i < by_score.size(); ++i) {
    if (i > 0 && (*scores)[by_score[i]] != (*scores)[by_score[i - 1]]) ++rank;
    const std::string_view piece = spec.contents[static_cast<size_t>(by_score[i])];
    for (size_t cut = 1; cut < piece.size(); ++cut) {
      const auto left = ids.find(piece.substr(0, cut));
      const auto right = left == ids.end() ? ids.end() : ids.find(piece.substr(cut));
      if (right != ids.end()) spec.merges.push_back({left->second, right->second, rank});
    }
  }
}

// Finds the tokens that end an answer, and makes them special tokens whatever type the file gives them.
void mark_end_tokens(const GgufFile& file, BpeTokenizerSpec& spec) {
  const size_t vocab = spec.contents.size();
  std::unordered_map<std::string_view, TokenId> ids;
  for (size_t id = 0; id < vocab; ++id) ids.emplace(spec.contents[id], static_cast<TokenId>(id));
  const auto find = [&](std::string_view name) -> std::optional<TokenId> {
    const auto found = ids.find(name);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  const auto named = [&](const char* purpose) {
    return token_of(file, "tokenizer.ggml." + std::string(purpose) + "_token_id", vocab, &spec.warnings);
  };
  spec.ends = find_end_tokens(find, spec.eos,
                              {named("eot"), named("eom"), named("fim_pad"), named("fim_rep"), named("fim_sep")});
  std::set<TokenId> missing = spec.ends;
  for (AddedToken& token : spec.added) {
    if (missing.erase(token.id) > 0) token.special = true;
  }
  // If BPE makes the token from text, that text stays text: "</s>" in Qwen's vocabulary.
  std::erase_if(missing, [&](TokenId id) {
    const std::string& content = spec.contents[static_cast<size_t>(id)];
    return std::any_of(spec.merges.begin(), spec.merges.end(), [&](const BpeMerge& merge) {
      const std::string &left = spec.contents[static_cast<size_t>(merge.left)],
                        &right = spec.contents[static_cast<size_t>(merge.right)];
      return left.size() + right.size() == content.size() && content.starts_with(left) && content.ends_with(right);
    });
  });
  for (const TokenId id : missing) spec.added.push_back({spec.contents[static_cast<size_t>(id)], id});
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer_gguf(const GgufFile& file) {
  const std::string* model = file.get_string("tokenizer.ggml.model");
  const std::vector<std::string>* tokens = file.get_strings("tokenizer.ggml.tokens");
  if (tokens == nullptr || tokens->empty()) {
    fail(file, "tokenizer.ggml.tokens", "expected an array of strings, found nothing");
  }
  BpeTokenizerSpec spec;
  spec.contents = *tokens;
  const size_t vocab = spec.contents.size();
  spec.bos = token_of(file, "tokenizer.ggml.bos_token_id", vocab);
  spec.eos = token_of(file, "tokenizer.ggml.eos_token_id", vocab);

  const std::vector<int64_t>* types = file.get_ints("tokenizer.ggml.token_type");
  if (types != nullptr && types->size() != vocab) {
    fail(file, "tokenizer.ggml.token_type",
         "expected " + std::to_string(vocab) + " types, found " + std::to_string(types->size()));
  }
  for (size_t id = 0; types != nullptr && id < vocab; ++id) {
    const int64_t type = (*types)[id];
    if (type != kControl && type != kUnknown && type != kUserDefined) continue;
    spec.added.push_back({spec.contents[id], static_cast<TokenId>(id), type != kUserDefined});
  }

  bool add_bos = false;
  if (model != nullptr && *model == "gpt2") {
    const std::string* given = file.get_string("tokenizer.ggml.pre");
    const std::string pre = given == nullptr ? "default" : *given;
    if (given == nullptr) {
      spec.warnings.push_back(file.name() +
                              ": key \"tokenizer.ggml.pre\" is missing: text is split as GPT-2's tokenizer does, and "
                              "answers are worse if the model expects another split; convert the model again with a "
                              "current converter");
    }
    const auto steps = gguf_pre_tokenizer(pre);
    if (!steps) fail(file, "tokenizer.ggml.pre", "expected " + gguf_pre_tokenizer_names() + ", found \"" + pre + "\"");
    spec.pre_tokenizer = *steps;
    spec.pre_tokenizer.push_back(byte_level_step());
    spec.decoder = {decode_byte_level()};
    read_gguf_merges(file, spec);
    spec.bpe.ignore_merges = ignores_merges(pre);
    if (is_nfc(pre)) spec.normalizer = {normal_form_step(NormalForm::kNfc)};
    add_bos = spec.bpe.ignore_merges;
  } else if (model != nullptr && *model == "llama") {
    make_merges_of_scores(file, types, spec);
    spec.bpe = {true, true, false, token_of(file, "tokenizer.ggml.unknown_token_id", vocab).value_or(0)};
    const bool prefix = file.get_bool("tokenizer.ggml.add_space_prefix").value_or(true);
    if (prefix) spec.normalizer.push_back(prepend_step("\xe2\x96\x81"));
    spec.normalizer.push_back(replace_step(Pattern::literal(" "), "\xe2\x96\x81", 1));
    spec.decoder = sentencepiece_decoder(prefix);
    add_bos = true;
  } else {
    fail(file, "tokenizer.ggml.model",
         "expected \"gpt2\" or \"llama\", found " + (model == nullptr ? "nothing" : "\"" + *model + "\""));
  }
  mark_end_tokens(file, spec);
  if (file.get_bool("tokenizer.ggml.add_bos_token").value_or(add_bos) && spec.bos) spec.prefix = {*spec.bos};
  if (file.get_bool("tokenizer.ggml.add_eos_token").value_or(false) && spec.eos) spec.suffix = {*spec.eos};
  return make_bpe_tokenizer(std::move(spec));
}

}  // namespace smartkv

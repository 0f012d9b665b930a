#include "engine/text/bpe_tokenizer.h"

#include <algorithm>
#include <atomic>
#include <map>

#include "engine/text/byte_level.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

constexpr size_t kMaxCachedWords = 1 << 16, kMaxCachedBytes = 64;

// The words that this thread has encoded lately with one tokenizer, and their tokens.
struct WordCache {
  uint64_t owner = 0;  // Serial number of the tokenizer.
  std::unordered_map<std::string, std::vector<TokenId>, StringHash, std::equal_to<>> words;
};

// Returns whether U+2581 follows another character in the token. If no result of a merge has this, text can be split
// before U+2581.
bool has_inner_metaspace(std::string_view content) {
  for (size_t at = content.find(kMetaspace, 1); at != std::string_view::npos; at = content.find(kMetaspace, at + 1)) {
    if (!content.substr(0, at).ends_with(kMetaspace)) return true;
  }
  return false;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerSpec spec) : spec_(std::move(spec)), bpe_(spec_.contents, spec_.merges, spec_.bpe) {
    std::vector<AddedToken> raw, normalized;
    added_by_id_.resize(spec_.contents.size());
    for (AddedToken& token : spec_.added) {
      contents_.emplace(token.content, token.id);
      if (token.id >= static_cast<TokenId>(added_by_id_.size())) added_by_id_.resize(static_cast<size_t>(token.id) + 1);
      added_by_id_[static_cast<size_t>(token.id)] = token;
      if (token.normalized) {
        token.content = normalize(token.content);
        if (token.content != added_by_id_[static_cast<size_t>(token.id)].content)
          normalized_contents_[token.id] = token.content;
        normalized.push_back(token);
      } else {
        raw.push_back(token);
      }
    }
    words_begin_at_metaspace_ = !spec_.bpe.ignore_merges && bpe_.id_of(kMetaspace) >= 0;
    for (const BpeMerge& merge : spec_.merges) {
      if (!words_begin_at_metaspace_) break;
      words_begin_at_metaspace_ = !has_inner_metaspace(bpe_.text_of(merge.left) + bpe_.text_of(merge.right));
    }
    raw_added_ = AddedTokens(std::move(raw));
    normalized_added_ = AddedTokens(std::move(normalized));
    for (size_t id = 0; id < spec_.contents.size(); ++id) {
      if (!spec_.contents[id].empty()) contents_.emplace(spec_.contents[id], static_cast<TokenId>(id));
    }
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    if (options.add_special) ids = spec_.prefix;
    std::string repaired;
    if (!utf8_is_valid(text)) text = repaired = utf8_repair(text);
    std::vector<AddedTokens::Piece> pieces;
    raw_added_.split(text, options.parse_special, &pieces);
    for (const AddedTokens::Piece& piece : pieces) {
      if (piece.token != nullptr) {
        ids.push_back(piece.token->id);
      } else {
        encode_plain(piece.text, piece.text.data() == text.data(), options.parse_special, &ids);
      }
    }
    if (options.add_special) ids.insert(ids.end(), spec_.suffix.begin(), spec_.suffix.end());
    return ids;
  }

  std::string decode(std::span<const TokenId> tokens, bool skip_special) const override {
    std::vector<std::string> texts;
    for (const TokenId token : tokens) {
      if (!(skip_special && is_special(token))) texts.push_back(decoded_content(token));
    }
    return decode_texts(spec_.decoder, std::move(texts), true);
  }

  std::string token_bytes(TokenId token) const override {
    return decode_texts(spec_.decoder, {decoded_content(token)}, false);
  }

  int64_t min_tokens(std::string_view text) const override {
    if (most_bytes_ == 0) return 0;
    const auto known =
        std::count_if(text.begin(), text.end(), [this](char byte) { return known_bytes_[static_cast<uint8_t>(byte)]; });
    return (known + most_bytes_ - 1) / most_bytes_;
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(added_by_id_.size()); }
  std::optional<TokenId> token_id(std::string_view content) const override {
    const auto found = contents_.find(content);
    return found == contents_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string token_content(TokenId token) const override {
    check(token);
    if (const AddedToken* added = added_token(token)) return added->content;
    const auto index = static_cast<size_t>(token);
    return index < spec_.contents.size() ? spec_.contents[index] : "";  // No token has the id.
  }
  bool is_special(TokenId token) const override {
    const AddedToken* added = token >= 0 && token < vocab_size() ? added_token(token) : nullptr;
    return (added != nullptr && added->special) || spec_.ends.contains(token);
  }
  std::optional<TokenId> bos() const override { return spec_.bos; }
  std::optional<TokenId> eos() const override { return spec_.eos; }
  const std::set<TokenId>& end_tokens() const override { return spec_.ends; }
  const std::vector<std::string>& warnings() const override { return spec_.warnings; }

 private:
  // Returns the text of a token for the decoder. It is normalized if the token is an added one that is matched in
  // normalized text.
  std::string decoded_content(TokenId token) const {
    const auto normalized = normalized_contents_.find(token);
    return normalized == normalized_contents_.end() ? token_content(token) : normalized->second;
  }

  bool uses_stand_ins() const {
    return std::any_of(spec_.pre_tokenizer.begin(), spec_.pre_tokenizer.end(),
                       [](const auto& step) { return step.stand_ins; });
  }

  // Returns which bytes of a text become tokens. The vocabulary drops the others.
  std::array<bool, 256> find_known_bytes() const {
    std::array<bool, 256> known{};
    for (size_t byte = 0; byte < known.size(); ++byte) {
      const std::string text(1, static_cast<char>(byte));
      known[byte] = uses_stand_ins() ? bpe_.id_of(to_stand_ins(text)) >= 0 : bpe_.has_byte_tokens();
    }
    return known;
  }

  // Returns the maximum number of known bytes of a text that one token stands for. Returns 0 if there is no maximum.
  int64_t find_most_bytes() const {
    const bool stand_ins = uses_stand_ins();
    const auto known = std::count(known_bytes_.begin(), known_bytes_.end(), true);
    // A normalizer may turn known bytes into unknown ones.
    if (known == 0 || (known < 256 && !spec_.normalizer.empty())) return 0;
    for (const PreTokenizerStep& step : spec_.pre_tokenizer) {
      if (step.removes) return 0;
    }
    int64_t longest = 0;
    for (const std::string& content : spec_.contents) {
      const auto is_start = [](char byte) { return (static_cast<unsigned char>(byte) & 0xc0) != 0x80; };
      const auto size = stand_ins ? std::count_if(content.begin(), content.end(), is_start)
                                  : static_cast<std::ptrdiff_t>(content.size());
      longest = std::max<int64_t>(longest, size);
    }
    for (const AddedToken& token : spec_.added) {
      if (token.lstrip || token.rstrip) return 0;
      longest = std::max(longest, static_cast<int64_t>(token.content.size()));
    }
    for (const NormalizerStep& step : spec_.normalizer) longest = std::min<int64_t>(longest * step.shrinks, INT32_MAX);
    return longest;
  }

  void check(TokenId token) const {
    if (token < 0 || token >= vocab_size()) {
      throw std::out_of_range("token " + std::to_string(token) + ": expected 0 to " + std::to_string(vocab_size() - 1));
    }
  }
  const AddedToken* added_token(TokenId token) const {
    const AddedToken& added = added_by_id_[static_cast<size_t>(token)];
    return added.content.empty() ? nullptr : &added;
  }

  std::string normalize(std::string_view text) const {
    std::string out(text);
    for (const NormalizerStep& step : spec_.normalizer) out = step.apply(out);
    return out;
  }

  void encode_plain(std::string_view text, bool first, bool parse_special, std::vector<TokenId>* ids) const {
    std::string normalized;
    if (!spec_.normalizer.empty()) text = normalized = normalize(text);
    std::vector<AddedTokens::Piece> pieces;
    normalized_added_.split(text, parse_special, &pieces);
    for (const AddedTokens::Piece& piece : pieces) {
      if (piece.token != nullptr) {
        ids->push_back(piece.token->id);
      } else {
        pre_tokenize(piece.text, first && piece.text.data() == text.data(), ids);
      }
    }
  }

  void pre_tokenize(std::string_view text, bool first, std::vector<TokenId>* ids) const {
    // Pieces may refer to texts that earlier results own.
    std::deque<TextPieces> results(spec_.pre_tokenizer.size() + 1);
    results[0].add({text, first});
    for (size_t i = 0; i < spec_.pre_tokenizer.size(); ++i) {
      for (const TextPiece& piece : results[i].pieces()) spec_.pre_tokenizer[i].apply(piece, &results[i + 1]);
    }
    for (const TextPiece& piece : results.back().pieces()) {
      if (words_begin_at_metaspace_) {
        encode_words(piece.text, ids);
      } else {
        encode_piece(piece.text, ids);
      }
    }
  }

  // Encodes word by word. No merge crosses the boundaries of words, so the tokens are the same, and the cache can be
  // used.
  void encode_words(std::string_view text, std::vector<TokenId>* ids) const {
    size_t begin = 0;
    for (size_t at = text.find(kMetaspace, 1); at != std::string_view::npos; at = text.find(kMetaspace, at + 1)) {
      if (text.substr(begin, at - begin).ends_with(kMetaspace)) continue;
      encode_piece(text.substr(begin, at - begin), ids);
      begin = at;
    }
    encode_piece(text.substr(begin), ids);
  }

  void encode_piece(std::string_view piece, std::vector<TokenId>* ids) const {
    if (piece.size() > kMaxCachedBytes) {
      bpe_.encode(piece, ids);
      return;
    }
    thread_local WordCache cache;
    if (cache.owner != serial_ || cache.words.size() > kMaxCachedWords) {
      cache.owner = serial_;
      cache.words.clear();
    }
    auto word = cache.words.find(piece);
    if (word == cache.words.end()) {
      std::vector<TokenId> encoded;
      bpe_.encode(piece, &encoded);
      word = cache.words.emplace(piece, std::move(encoded)).first;
    }
    ids->insert(ids->end(), word->second.begin(), word->second.end());
  }

  static uint64_t next_serial() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const uint64_t serial_ = next_serial();
  BpeTokenizerSpec spec_;
  Bpe bpe_;
  AddedTokens raw_added_, normalized_added_;
  bool words_begin_at_metaspace_ = false;
  std::array<bool, 256> known_bytes_ = find_known_bytes();
  int64_t most_bytes_ = find_most_bytes();
  // Normalized texts of the added tokens that the normalizer changes.
  std::map<TokenId, std::string> normalized_contents_;
  std::vector<AddedToken> added_by_id_;  // [vocab_size]. The content is empty if the id is not an added token.
  std::map<std::string, TokenId, std::less<>> contents_;
};

}  // namespace

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerSpec spec) {
  return std::make_unique<BpeTokenizer>(std::move(spec));
}

}  // namespace smartkv

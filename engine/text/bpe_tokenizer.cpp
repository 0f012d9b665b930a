#include "engine/text/bpe_tokenizer.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <charconv>
#include <deque>
#include <unordered_map>

#include "engine/text/utf8.h"

namespace smartkv {
namespace {

constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581, SentencePiece's space
constexpr size_t kMaxCachedWords = 1 << 16, kMaxCachedBytes = 64;

// The words that this thread met last, of one tokenizer.
struct WordCache {
  uint64_t owner = 0;  // a tokenizer's serial number
  struct Hash {
    using is_transparent = void;
    size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
  };
  std::unordered_map<std::string, std::vector<TokenId>, Hash, std::equal_to<>> words;
};

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  if (from.empty() || text.find(from) == std::string::npos) return;
  std::string out;
  size_t at = 0;
  for (size_t found; (found = text.find(from, at)) != std::string::npos; at = found + from.size()) {
    out.append(text, at, found - at);
    out += to;
  }
  out.append(text, at);
  text = std::move(out);
}

// The bytes that an entry of a byte-level vocabulary means; none for an entry with other characters, which BPE never
// makes: it only has a meaning as an added token.
std::string bytes_of_entry(const std::string& content) {
  std::string bytes;
  for (std::string_view rest = content; !rest.empty();) {
    const size_t length = utf8_length(rest);
    const int byte = length == 0 ? -1 : byte_of_stand_in(utf8_decode(rest.substr(0, length)));
    if (byte < 0) return "";
    bytes += static_cast<char>(byte);
    rest.remove_prefix(length);
  }
  return bytes;
}

// "<0x0A>" is the byte 10; -1: no such token.
int fallback_byte(const std::string& content) {
  if (content.size() != 6 || !content.starts_with("<0x") || content[5] != '>') return -1;
  unsigned value = 0;
  const char* const end = content.data() + 5;
  return std::from_chars(content.data() + 3, end, value, 16).ptr == end ? static_cast<int>(value) : -1;
}

// U+2581 stands behind another character: where it does in no merge, text can be cut before it.
bool has_inner_metaspace(std::string_view content) {
  for (size_t at = content.find(kMetaspace, 1); at != std::string_view::npos; at = content.find(kMetaspace, at + 1)) {
    if (!content.substr(0, at).ends_with(kMetaspace)) return true;
  }
  return false;
}

class BpeTokenizer final : public Tokenizer {
 public:
  explicit BpeTokenizer(BpeTokenizerSpec spec) : spec_(std::move(spec)), bpe_(make_bpe()) {
    std::vector<AddedToken> raw, normalized;
    added_by_id_.resize(spec_.contents.size());
    for (AddedToken& token : spec_.added) {
      contents_.emplace(token.content, token.id);
      if (token.id >= static_cast<TokenId>(added_by_id_.size())) added_by_id_.resize(static_cast<size_t>(token.id) + 1);
      added_by_id_[static_cast<size_t>(token.id)] = token;
      if (token.normalized) {
        token.content = normalize(token.content);
        normalized.push_back(token);
      } else {
        raw.push_back(token);
      }
    }
    words_begin_at_metaspace_ = !spec_.bpe.byte_level && !spec_.bpe.ignore_merges && bpe_.id_of(kMetaspace) >= 0;
    for (const BpeMerge& merge : spec_.merges) {
      if (!words_begin_at_metaspace_) break;
      words_begin_at_metaspace_ = !has_inner_metaspace(bpe_.bytes_of(merge.left) + bpe_.bytes_of(merge.right));
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
    std::string text;
    for (const TokenId token : tokens) {
      if (!(skip_special && is_special(token))) text += token_bytes(token);
    }
    if (spec_.strip_leading_space && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  std::string token_bytes(TokenId token) const override {
    check(token);
    if (const AddedToken* added = added_token(token)) return added->content;
    const std::string& content = spec_.contents[static_cast<size_t>(token)];
    if (spec_.bpe.byte_level) return bpe_.bytes_of(token).empty() ? content : bpe_.bytes_of(token);
    if (const int byte = fallback_byte(content); byte >= 0) return std::string(1, static_cast<char>(byte));
    std::string text = content;
    replace_all(text, kMetaspace, " ");
    return text;
  }

  int64_t min_tokens(std::string_view text) const override {
    if (longest_token_ == 0) return 0;
    return (bpe_.kept_bytes(text) + longest_token_ - 1) / longest_token_;
  }
  int64_t vocab_size() const override { return static_cast<int64_t>(added_by_id_.size()); }
  std::optional<TokenId> token_id(std::string_view content) const override {
    const auto found = contents_.find(content);
    return found == contents_.end() ? std::nullopt : std::optional(found->second);
  }
  std::string token_content(TokenId token) const override {
    check(token);
    const AddedToken* added = added_token(token);
    return added != nullptr ? added->content : spec_.contents[static_cast<size_t>(token)];
  }
  bool is_special(TokenId token) const override {
    const AddedToken* added = token >= 0 && token < vocab_size() ? added_token(token) : nullptr;
    return added != nullptr && added->special;
  }
  std::optional<TokenId> bos() const override { return spec_.bos; }
  std::optional<TokenId> eos() const override { return spec_.eos; }

 private:
  Bpe make_bpe() const {
    std::vector<std::string> tokens = spec_.contents;
    if (spec_.bpe.byte_level) {
      for (std::string& token : tokens) token = bytes_of_entry(token);
    }
    return {std::move(tokens), spec_.merges, spec_.bpe};
  }

  // Bytes of a text that a token may stand for; 0: any number.
  int64_t find_longest_token() const {
    for (const NormalizerStep& step : spec_.normalizer) {
      if (step.kind == NormalizerStep::Kind::kReplace && step.content.size() < step.pattern.size()) return 0;
    }
    size_t longest = 0;
    for (TokenId id = 0; id < static_cast<TokenId>(spec_.contents.size()); ++id) {
      longest = std::max(longest, bpe_.bytes_of(id).size());
    }
    for (const AddedToken& token : spec_.added) {
      if (token.lstrip || token.rstrip) return 0;
      longest = std::max(longest, token.content.size());
    }
    return static_cast<int64_t>(longest);
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
    for (const NormalizerStep& step : spec_.normalizer) {
      if (step.kind == NormalizerStep::Kind::kReplace) {
        replace_all(out, step.pattern, step.content);
      } else if (!out.empty()) {
        out.insert(0, step.content);
      }
    }
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
    std::deque<std::string> changed;  // the text of pieces that a step changed
    std::vector<std::string_view> pieces = {text}, next;
    for (const PreTokenizerStep& step : spec_.pre_tokenizer) {
      next.clear();
      for (size_t i = 0; i < pieces.size(); ++i) {
        if (step.kind == PreTokenizerStep::Kind::kPattern) {
          step.pattern->split(pieces[i], &next);
        } else if (step.kind == PreTokenizerStep::Kind::kPrefixSpace) {
          const bool add = !pieces[i].starts_with(' ');
          next.push_back(add ? changed.emplace_back(1, ' ').append(pieces[i]) : pieces[i]);
        } else {
          std::string& piece = changed.emplace_back(pieces[i]);
          replace_all(piece, " ", kMetaspace);
          const bool prepend = step.prepend == PreTokenizerStep::Prepend::kAlways ||
                               (step.prepend == PreTokenizerStep::Prepend::kFirst && first && i == 0);
          if (prepend && !piece.starts_with(kMetaspace)) piece.insert(0, kMetaspace);
          for (std::string_view rest = piece; !rest.empty();) {
            const std::string_view word = rest.substr(0, step.split ? rest.find(kMetaspace, 1) : std::string::npos);
            next.push_back(word);
            rest.remove_prefix(word.size());
          }
        }
      }
      pieces.swap(next);
    }
    for (const std::string_view piece : pieces) {
      if (words_begin_at_metaspace_) {
        encode_words(piece, ids);
      } else {
        encode_piece(piece, ids);
      }
    }
  }

  // Cuts where no merge reaches across: the same tokens, and the cache serves.
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
  int64_t longest_token_ = find_longest_token();
  std::vector<AddedToken> added_by_id_;  // empty content: not an added token
  std::map<std::string, TokenId, std::less<>> contents_;
};

// GPT-2's table: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and on, in order.
std::array<int, 512> make_stand_ins() {
  std::array<int, 512> bytes;
  bytes.fill(-1);
  int next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    bytes[static_cast<size_t>(printable ? byte : next++)] = byte;
  }
  return bytes;
}

}  // namespace

int byte_of_stand_in(char32_t character) {
  static const std::array<int, 512> bytes = make_stand_ins();
  return character < bytes.size() ? bytes[character] : -1;
}

SplitPattern gpt2_pattern() {
  return SplitPattern(R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

std::unique_ptr<Tokenizer> make_bpe_tokenizer(BpeTokenizerSpec spec) {
  return std::make_unique<BpeTokenizer>(std::move(spec));
}

}  // namespace smartkv

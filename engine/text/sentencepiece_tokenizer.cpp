#include "engine/text/sentencepiece_tokenizer.h"

#include <algorithm>
#include <map>

#include <sentencepiece_processor.h>

#include "engine/text/end_tokens.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

// The serialized field normalizer_spec {add_dummy_prefix: false}. Appended to a serialized model it overrides the
// model's own value, because protobuf merges repeated messages.
constexpr std::string_view kNoPrefix("\x1a\x02\x18\x00", 4);

void check(const sentencepiece::util::Status& status, const std::string& what) {
  if (!status.ok()) throw TokenizerError(what + ": " + status.ToString());
}

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::filesystem::path& file, const TokenizerConfig& config)
      : legacy_(config.legacy.value_or(false)) {
    const std::string name = file.filename().string();
    check(processor_.Load(file.string()), name);
    check(inner_.LoadFromSerializedProto(processor_.serialized_model_proto() + std::string(kNoPrefix)), name);
    vocab_size_ = processor_.GetPieceSize();
    std::vector<AddedToken> all;
    for (TokenId id = 0; id < processor_.GetPieceSize(); ++id) {
      if (is_special(id)) all.push_back({processor_.IdToPiece(id), id, true});
    }
    for (const AddedToken& token : config.added) {
      std::erase_if(all, [&](const AddedToken& other) { return other.id == token.id; });
      all.push_back(token);
      added_by_id_[token.id] = token;
      vocab_size_ = std::max<int64_t>(vocab_size_, token.id + 1);
    }
    added_ = AddedTokens(std::move(all));
    const auto special = [&](int id, const std::string& content) -> std::optional<TokenId> {
      if (!content.empty()) return token_id(content);
      return id >= 0 ? std::optional(id) : std::nullopt;
    };
    bos_ = special(processor_.bos_id(), config.bos);
    eos_ = special(processor_.eos_id(), config.eos);
    ends_ = find_end_tokens([this](std::string_view content) { return token_id(content); }, eos_);
    add_bos_ = config.add_bos.value_or(true);
    add_eos_ = config.add_eos.value_or(false);
    std::vector<std::string> probe;
    const bool prefixes = processor_.Encode("a", &probe).ok() && !probe.empty() && probe[0].starts_with(kMetaspace);
    decoder_ = sentencepiece_decoder(prefixes);
  }

  std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options) const override {
    std::vector<TokenId> ids;
    if (options.add_special && add_bos_ && bos_) ids.push_back(*bos_);
    const std::string repaired = utf8_repair(text);
    std::vector<AddedTokens::Piece> pieces;
    added_.split(repaired, options.parse_special, &pieces);
    for (const AddedTokens::Piece& piece : pieces) {
      if (piece.token != nullptr) {
        ids.push_back(piece.token->id);
        continue;
      }
      const bool begins_with_space = piece.text.starts_with(' ') || piece.text.starts_with(kMetaspace);
      const bool prefixed = legacy_ || (piece.text.data() == repaired.data() && !begins_with_space);
      std::vector<int> encoded;
      check((prefixed ? processor_ : inner_).Encode({piece.text.data(), piece.text.size()}, &encoded), "SentencePiece");
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
    if (options.add_special && add_eos_ && eos_) ids.push_back(*eos_);
    return ids;
  }

  std::string decode(std::span<const TokenId> tokens, bool skip_special) const override {
    std::vector<std::string> texts;
    for (const TokenId token : tokens) {
      if (!(skip_special && is_special(token))) texts.push_back(token_content(token));
    }
    return decode_texts(decoder_, std::move(texts), true);
  }
  std::string token_bytes(TokenId token) const override {
    return decode_texts(decoder_, {token_content(token)}, false);
  }

  int64_t vocab_size() const override { return vocab_size_; }
  std::optional<TokenId> token_id(std::string_view content) const override {
    for (const auto& [id, token] : added_by_id_) {
      if (token.content == content) return id;
    }
    const int id = processor_.PieceToId({content.data(), content.size()});
    return id != processor_.unk_id() || processor_.IdToPiece(id) == content ? std::optional(id) : std::nullopt;
  }
  std::string token_content(TokenId token) const override {
    if (token < 0 || token >= vocab_size()) {
      throw std::out_of_range("token " + std::to_string(token) + ": expected 0 to " + std::to_string(vocab_size() - 1));
    }
    if (const auto added = added_by_id_.find(token); added != added_by_id_.end()) return added->second.content;
    return token < processor_.GetPieceSize() ? processor_.IdToPiece(token) : "";  // No token has the id.
  }
  bool is_special(TokenId token) const override {
    if (ends_.contains(token)) return true;
    if (const auto added = added_by_id_.find(token); added != added_by_id_.end()) return added->second.special;
    return token >= 0 && token < processor_.GetPieceSize() &&
           (processor_.IsControl(token) || processor_.IsUnknown(token));
  }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }
  const std::set<TokenId>& end_tokens() const override { return ends_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  sentencepiece::SentencePieceProcessor inner_;  // The same model, but it does not put a space in front of a text.
  // Every text between special tokens gets a space in front. If false, only the first text does.
  bool legacy_;
  AddedTokens added_;
  std::map<TokenId, AddedToken> added_by_id_;  // The added tokens of the configuration.
  int64_t vocab_size_ = 0;
  std::optional<TokenId> bos_, eos_;
  std::set<TokenId> ends_;
  bool add_bos_ = true, add_eos_ = false;
  std::vector<DecoderStep> decoder_;
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file, const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(file, config);
}

}  // namespace smartkv

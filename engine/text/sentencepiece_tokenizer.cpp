#include "engine/text/sentencepiece_tokenizer.h"

#include <cstdlib>

#include <sentencepiece_processor.h>

#include "engine/text/utf8.h"

namespace smartkv {
namespace {

constexpr std::string_view kMetaspace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

class SentencePieceTokenizer final : public Tokenizer {
 public:
  SentencePieceTokenizer(const std::filesystem::path& file, const TokenizerConfig& config) {
    const auto status = processor_.Load(file.string());
    if (!status.ok()) throw TokenizerError(file.filename().string() + ": " + status.ToString());
    std::vector<AddedToken> special_tokens;
    for (int id = 0; id < processor_.GetPieceSize(); ++id) {
      if (is_special(id)) special_tokens.push_back({processor_.IdToPiece(id), id, true});
    }
    added_ = AddedTokens(std::move(special_tokens));
    const auto special = [&](int id, const std::string& content) -> std::optional<TokenId> {
      if (!content.empty()) return token_id(content);
      return id >= 0 ? std::optional(id) : std::nullopt;
    };
    bos_ = special(processor_.bos_id(), config.bos);
    eos_ = special(processor_.eos_id(), config.eos);
    add_bos_ = config.add_bos.value_or(true);
    add_eos_ = config.add_eos.value_or(false);
    std::vector<std::string> probe;
    strip_leading_space_ = processor_.Encode("a", &probe).ok() && !probe.empty() && probe[0].starts_with(kMetaspace);
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
      std::vector<int> encoded;
      const auto status = processor_.Encode({piece.text.data(), piece.text.size()}, &encoded);
      if (!status.ok()) throw TokenizerError("SentencePiece: " + status.ToString());
      ids.insert(ids.end(), encoded.begin(), encoded.end());
    }
    if (options.add_special && add_eos_ && eos_) ids.push_back(*eos_);
    return ids;
  }

  std::string decode(std::span<const TokenId> tokens, bool skip_special) const override {
    std::string text;
    for (const TokenId token : tokens) {
      if (!(skip_special && is_special(token))) text += token_bytes(token);
    }
    if (strip_leading_space_ && text.starts_with(' ')) text.erase(0, 1);
    return text;
  }

  std::string token_bytes(TokenId token) const override {
    const std::string piece = token_content(token);
    if (processor_.IsByte(token)) {
      return std::string(1, static_cast<char>(std::strtol(piece.substr(3, 2).c_str(), nullptr, 16)));
    }
    std::string text;
    for (size_t at = 0; at < piece.size();) {
      const bool space = piece.compare(at, kMetaspace.size(), kMetaspace) == 0;
      text += space ? ' ' : piece[at];
      at += space ? 3 : 1;
    }
    return text;
  }

  int64_t vocab_size() const override { return processor_.GetPieceSize(); }
  std::optional<TokenId> token_id(std::string_view content) const override {
    const int id = processor_.PieceToId({content.data(), content.size()});
    return id != processor_.unk_id() || token_content(id) == content ? std::optional(id) : std::nullopt;
  }
  std::string token_content(TokenId token) const override {
    if (token < 0 || token >= vocab_size()) {
      throw std::out_of_range("token " + std::to_string(token) + ": expected 0 to " + std::to_string(vocab_size() - 1));
    }
    return processor_.IdToPiece(token);
  }
  bool is_special(TokenId token) const override {
    return token >= 0 && token < vocab_size() && (processor_.IsControl(token) || processor_.IsUnknown(token));
  }
  std::optional<TokenId> bos() const override { return bos_; }
  std::optional<TokenId> eos() const override { return eos_; }

 private:
  sentencepiece::SentencePieceProcessor processor_;
  AddedTokens added_;
  std::optional<TokenId> bos_, eos_;
  bool add_bos_ = true, add_eos_ = false;
  bool strip_leading_space_ = true;  // the space that the library puts in front
};

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& file, const TokenizerConfig& config) {
  return std::make_unique<SentencePieceTokenizer>(file, config);
}

}  // namespace smartkv

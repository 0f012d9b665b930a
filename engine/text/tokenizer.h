// Text to token ids and back. Implementations reproduce the Hugging Face `tokenizers` library id for id.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace smartkv {

class GgufFile;
class Weights;

using TokenId = int32_t;

// A tokenizer file that cannot be used; the message names the file, the key, what was expected and what was found.
class TokenizerError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct EncodeOptions {
  bool add_special = true;    // what the model's post-processor adds (BOS for Llama 2 and 3, nothing for SmolLM2)
  bool parse_special = true;  // "<|im_end|>" in the text becomes its token; false: it is plain text
};

// Immutable after construction; every method may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // `text` is UTF-8; bytes that are not are treated as U+FFFD, as `tokenizers` receives them from Python.
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  // The bytes that the tokens stand for; may begin or end inside a UTF-8 character.
  virtual std::string decode(std::span<const TokenId> tokens, bool skip_special = true) const = 0;
  // The bytes that `token` adds in the middle of a text (no stripping of a leading space). Throws std::out_of_range.
  virtual std::string token_bytes(TokenId token) const = 0;

  virtual int64_t vocab_size() const = 0;                                      // highest id + 1
  virtual std::optional<TokenId> token_id(std::string_view content) const = 0;  // of a vocabulary entry, as written
  virtual std::string token_content(TokenId token) const = 0;                   // the entry as written ("Ġthe", "<s>")
  virtual bool is_special(TokenId token) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;
  // The tokens of the vocabulary that end an answer (end_tokens.h). They are special.
  virtual const std::set<TokenId>& end_tokens() const {
    static const std::set<TokenId> kNone;
    return kNone;
  }
  // What its users should know of the file: of a key that is missing, for example.
  virtual const std::vector<std::string>& warnings() const {
    static const std::vector<std::string> kNone;
    return kNone;
  }
  // Tokens that `text` has at least, found without tokenizing it: its bytes by those of the longest token. 0: no such
  // bound is known (a normalizer or a token may swallow any number of bytes).
  virtual int64_t min_tokens(std::string_view /*text*/) const { return 0; }
};

// A Hugging Face folder (tokenizer.json, else tokenizer.model, with tokenizer_config.json) or a GGUF file.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model);
// The same of a model that is open already: a GGUF file is not read again.
std::unique_ptr<Tokenizer> load_tokenizer(const Weights& weights, const std::filesystem::path& model);
std::unique_ptr<Tokenizer> load_tokenizer_gguf(const GgufFile& file);

// Turns the tokens that continue a text into a stream of text, holding back bytes that do not yet form whole UTF-8
// characters. All results together are the tokens' token_bytes(), with broken bytes as U+FFFD.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(TokenId token);  // the text that became complete
  std::string flush();              // what was still held back, broken bytes as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string held_;
};

}  // namespace smartkv

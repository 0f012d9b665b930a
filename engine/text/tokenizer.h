// Conversion of text to token ids and back. Implementations reproduce the ids of the Hugging Face `tokenizers` library
// exactly.
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

// Thrown for a tokenizer file that cannot be used. The message names the file, the key, what was expected and what was
// found.
class TokenizerError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct EncodeOptions {
  bool add_special = true;    // Adds the tokens of the post-processor (BOS for Llama 2 and 3, none for SmolLM2).
  bool parse_special = true;  // "<|im_end|>" in the text becomes its token. If false, it is plain text.
};

// Immutable after construction; every method may be called from several threads at once.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // Returns the tokens of a UTF-8 text. Bytes that are not valid UTF-8 count as U+FFFD, as `tokenizers` receives them
  // from Python.
  virtual std::vector<TokenId> encode(std::string_view text, const EncodeOptions& options = {}) const = 0;
  // Returns the bytes that the tokens stand for. They may begin or end inside a UTF-8 character.
  virtual std::string decode(std::span<const TokenId> tokens, bool skip_special = true) const = 0;
  // Returns the bytes that `token` adds in the middle of a text, where no leading space is stripped. Throws
  // std::out_of_range.
  virtual std::string token_bytes(TokenId token) const = 0;

  virtual int64_t vocab_size() const = 0;  // The highest id + 1.
  // Returns the id of a vocabulary entry, as written ("Ġthe", "<s>"). Returns nullopt if there is none.
  virtual std::optional<TokenId> token_id(std::string_view content) const = 0;
  // Returns the vocabulary entry as written; empty for an id that no token has. Throws std::out_of_range.
  virtual std::string token_content(TokenId token) const = 0;
  virtual bool is_special(TokenId token) const = 0;
  virtual std::optional<TokenId> bos() const = 0;
  virtual std::optional<TokenId> eos() const = 0;
  // Returns the tokens of the vocabulary that end an answer (end_tokens.h). They are special.
  virtual const std::set<TokenId>& end_tokens() const {
    static const std::set<TokenId> kNone;
    return kNone;
  }
  // Returns warnings about the file for its users, such as a missing key.
  virtual const std::vector<std::string>& warnings() const {
    static const std::vector<std::string> kNone;
    return kNone;
  }
  // Returns a lower bound of the number of tokens of `text` without tokenizing it: its bytes divided by those of the
  // longest token. Returns 0 if no bound is known, because a normalizer or a token may stand for any number of bytes.
  virtual int64_t min_tokens(std::string_view /*text*/) const { return 0; }
};

// Loads the tokenizer of a GGUF file or a Hugging Face folder (tokenizer.json, else tokenizer.model, with
// tokenizer_config.json). Throws TokenizerError, or ModelError if a GGUF file cannot be read.
std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model);
// Loads the tokenizer of a model that is open already. Does not read a GGUF file again.
std::unique_ptr<Tokenizer> load_tokenizer(const Weights& weights, const std::filesystem::path& model);
std::unique_ptr<Tokenizer> load_tokenizer_gguf(const GgufFile& file);

// Turns the tokens that continue a text into a stream of text. Holds back bytes that do not form whole UTF-8 characters
// yet. All results together are the token_bytes() of the tokens, with malformed bytes as U+FFFD.
class StreamDecoder {
 public:
  // `shown` are special tokens that are part of the text even if the others are skipped. `tokenizer` must outlive this
  // object.
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true, std::vector<TokenId> shown = {});
  std::string push(TokenId token);  // Returns the text that became complete.
  std::string flush();              // Returns the bytes that were held back, malformed bytes as U+FFFD.
  bool shows(TokenId token) const;  // Whether the token is part of the text.

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::vector<TokenId> shown_;
  std::string held_;
};

}  // namespace smartkv

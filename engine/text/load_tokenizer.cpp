#include "engine/text/added_tokens_files.h"
#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "engine/weights/gguf.h"
#include "engine/weights/weights.h"

namespace smartkv {

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) return load_tokenizer_gguf(GgufFile::open(model));
  TokenizerConfig config;
  if (const auto path = model / "tokenizer_config.json"; std::filesystem::exists(path)) {
    config = parse_tokenizer_config(parse_json(read_text_file(path), path.string()), path.string());
  }
  if (const auto path = model / "tokenizer.json"; std::filesystem::exists(path)) {
    return make_bpe_tokenizer(
        parse_tokenizer_json(parse_json(read_text_file(path), path.string()), config, path.string()));
  }
  if (const auto path = model / "tokenizer.model"; std::filesystem::exists(path)) {
    if (const auto tokens = model / "added_tokens.json"; std::filesystem::exists(tokens)) {
      add_listed_tokens(parse_json(read_text_file(tokens), tokens.string()), tokens.string(), &config);
    }
    if (const auto map = model / "special_tokens_map.json"; std::filesystem::exists(map)) {
      add_special_tokens(parse_json(read_text_file(map), map.string()), map.string(), &config);
    }
    return load_sentencepiece(path, config);
  }
  throw TokenizerError(model.string() + ": expected tokenizer.json or tokenizer.model, found neither");
}

std::unique_ptr<Tokenizer> load_tokenizer(const Weights& weights, const std::filesystem::path& model) {
  return weights.gguf() != nullptr ? load_tokenizer_gguf(*weights.gguf()) : load_tokenizer(model);
}

}  // namespace smartkv

#include <fstream>
#include <sstream>

#include "engine/text/sentencepiece_tokenizer.h"
#include "engine/text/tokenizer.h"
#include "engine/text/tokenizer_json.h"
#include "engine/weights/gguf.h"

namespace smartkv {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw TokenizerError(path.string() + ": cannot be opened");
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw TokenizerError(path.string() + ": " + error.what());
  }
}

}  // namespace

std::unique_ptr<Tokenizer> load_tokenizer(const std::filesystem::path& model) {
  if (!std::filesystem::is_directory(model)) return load_tokenizer_gguf(GgufFile::open(model));
  TokenizerConfig config;
  if (const auto path = model / "tokenizer_config.json"; std::filesystem::exists(path)) {
    config = parse_tokenizer_config(read_json(path), "tokenizer_config.json");
  }
  if (const auto path = model / "chat_template.jinja"; std::filesystem::exists(path)) {
    std::stringstream source;
    source << std::ifstream(path).rdbuf();
    config.chat_template = source.str();
  }
  if (const auto path = model / "tokenizer.json"; std::filesystem::exists(path)) {
    return make_bpe_tokenizer(parse_tokenizer_json(read_json(path), config, "tokenizer.json"));
  }
  if (const auto path = model / "tokenizer.model"; std::filesystem::exists(path)) return load_sentencepiece(path, config);
  throw TokenizerError(model.string() + ": expected tokenizer.json or tokenizer.model, found neither");
}

}  // namespace smartkv

#include "engine/weights/draft_weights.h"

#include <nlohmann/json.hpp>

#include "engine/weights/required_tensors.h"

namespace smartkv {
namespace {

constexpr const char* kEmbedding = "model.embed_tokens.weight";
constexpr const char* kHead = "lm_head.weight";

class DraftWeights final : public Weights {
 public:
  DraftWeights(const std::filesystem::path& path, const Weights& target)
      : file_(SafetensorsFile::open(path)),
        name_(path.filename().string()),
        target_(target),
        target_head_(target.config().tie_word_embeddings ? kEmbedding : kHead),
        config_(target.config()) {
    config_.name = path.stem().string();
    config_.tie_word_embeddings = false;
    config_.n_layers = whole("draft_layers", 1, target.config().n_layers);
    if (whole("vocab_size", 1, INT32_MAX) != config_.vocab_size) {
      fail("vocab_size", "the vocabulary size of " + target.config().name + ", " + std::to_string(config_.vocab_size));
    }
    read_output_tokens();
    check_required_tensors(*this, name_);
  }

  const ModelConfig& config() const override { return config_; }
  std::string format() const override { return "safetensors, embedding and head of " + target_.config().name; }
  std::vector<std::string> names() const override {
    std::vector<std::string> names = {kHead, kEmbedding};
    for (const auto& [name, tensor] : file_.tensors()) names.push_back(name);
    return names;
  }
  std::optional<TensorView> find(std::string_view name) const override {
    if (name == kEmbedding) return target_.find(kEmbedding);
    if (name == kHead) return target_.find(target_head_);
    const auto found = file_.tensors().find(name);
    return found == file_.tensors().end() ? std::nullopt : std::optional(found->second);
  }
  int64_t file_row(std::string_view name, int64_t row) const override {
    return name == kHead ? output_tokens_.at(static_cast<size_t>(row)) : row;
  }
  std::span<const int32_t> output_tokens() const override { return output_tokens_; }

 private:
  [[noreturn]] void fail(const std::string& key, const std::string& expected) const {
    const auto found = file_.metadata().find(key);
    throw ModelError(name_ + ": metadata \"" + key + "\": expected " + expected + ", found " +
                     (found == file_.metadata().end() ? "nothing; the file is not a draft of smartkv train-draft"
                                                      : found->second.substr(0, 100)));
  }
  nlohmann::json value(const std::string& key) const {
    const auto found = file_.metadata().find(key);
    return found == file_.metadata().end() ? nlohmann::json() : nlohmann::json::parse(found->second, nullptr, false);
  }
  int64_t whole(const std::string& key, int64_t least, int64_t most) const {
    const nlohmann::json number = value(key);
    if (!number.is_number_integer() || number < least || number > most) {
      fail(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    }
    return number.get<int64_t>();
  }
  void read_output_tokens() {
    const nlohmann::json tokens = value("output_tokens");
    const std::string expected = "ascending token ids below " + std::to_string(config_.vocab_size);
    if (!tokens.is_array() || tokens.empty()) fail("output_tokens", expected);
    int64_t least = 0;
    for (const nlohmann::json& token : tokens) {
      if (!token.is_number_integer() || token < least || token >= config_.vocab_size) fail("output_tokens", expected);
      output_tokens_.push_back(token.get<int32_t>());
      least = output_tokens_.back() + 1;
    }
  }

  SafetensorsFile file_;
  std::string name_;
  const Weights& target_;
  const char* target_head_;
  ModelConfig config_;
  std::vector<int32_t> output_tokens_;
};

}  // namespace

std::unique_ptr<Weights> open_draft_weights(const std::filesystem::path& file, const Weights& target) {
  if (file.extension() != ".safetensors") return Weights::open(file);
  return std::make_unique<DraftWeights>(file, target);
}

void write_draft_weights(const std::filesystem::path& file, const ModelConfig& target, int64_t layers,
                         std::span<const int32_t> output_tokens, const std::vector<NamedTensor>& tensors,
                         const std::map<std::string, std::string>& notes) {
  std::map<std::string, std::string> metadata = notes;
  metadata["drafts_for"] = target.name;
  metadata["draft_layers"] = std::to_string(layers);
  metadata["vocab_size"] = std::to_string(target.vocab_size);
  metadata["output_tokens"] = nlohmann::json(std::vector<int32_t>(output_tokens.begin(), output_tokens.end())).dump();
  write_safetensors(file, tensors, TensorType::kBf16, metadata);
}

}  // namespace smartkv

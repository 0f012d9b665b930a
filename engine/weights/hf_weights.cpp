#include "engine/weights/hf_weights.h"

#include <algorithm>
#include <fstream>
#include <set>

#include "engine/weights/architecture.h"
#include "engine/weights/config_fields.h"
#include "engine/weights/gguf.h"
#include "engine/weights/model_name.h"
#include "engine/weights/projections.h"
#include "engine/weights/quantization_config.h"
#include "engine/weights/safetensors.h"

namespace smartkv {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  std::ifstream file(path);
  if (!file) throw ModelError(path.string() + ": cannot be opened");
  try {
    return nlohmann::json::parse(file);
  } catch (const nlohmann::json::exception& error) {
    throw ModelError(path.string() + ": " + error.what());
  }
}

// Returns the file names of the shards in an index. Throws ModelError for a name that would leave the folder.
std::set<std::string> shard_names(const std::filesystem::path& index) {
  const nlohmann::json json = read_json(index);
  const std::string file = index.filename().string();
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object()) {
    throw ModelError(file + ": key \"weight_map\": expected an object");
  }
  std::set<std::string> names;
  for (const auto& [tensor, shard] : json["weight_map"].items()) {
    if (!shard.is_string() || shard.get<std::string>().find('/') != std::string::npos) {
      throw ModelError(file + ": weight_map." + tensor + ": expected a file name, found " + shard.dump());
    }
    names.insert(shard.get<std::string>());
  }
  return names;
}

bool same_values(const TensorView& a, const TensorView& b) {
  if (a.shape != b.shape) return false;
  if (a.type == b.type && a.scales == nullptr && b.scales == nullptr && a.integers == nullptr &&
      b.integers == nullptr) {
    return std::ranges::equal(a.data, b.data);
  }
  const auto width = static_cast<size_t>(a.row_elements());
  std::vector<float> row_of_a(width), row_of_b(width);
  for (int64_t row = 0; row < a.rows(); ++row) {
    expand_rows(a, row, 1, row_of_a.data());
    expand_rows(b, row, 1, row_of_b.data());
    if (row_of_a != row_of_b) return false;
  }
  return true;
}

class HfWeights final : public Weights {
 public:
  explicit HfWeights(const std::filesystem::path& folder) {
    const nlohmann::json config = read_json(folder / "config.json");
    config_ = parse_hf_config(config, "config.json");
    config_.name = model_names(folder, title_of_config(config)).front();
    add_generation_eos(folder);
    read_tensors(folder);
    keep_text_model();
    rename_experts();
    if (config.contains("quantization_config") && !config["quantization_config"].is_null()) {
      apply_quantization(config["quantization_config"], config_, folder.filename().string(), tensors_);
    }
    const Architecture& architecture = *find_architecture(config_.architecture);
    norms_add_one_ = architecture.norms_add_one;
    if (architecture.fused_projections) split_fused_projections(config_, tensors_);
    if (architecture.gpt_oss_experts) split_gpt_oss_experts(config_, tensors_);
    split_experts(config_, tensors_);
    for (const auto& [name, tensor] : tensors_) {
      if (tensor.type == TensorType::kI32 || tensor.type == TensorType::kU8) {
        throw ModelError(folder.filename().string() + ": tensor \"" + name + "\": expected floats, found " +
                         std::string(tensor_type_info(tensor.type).name) +
                         (config.contains("quantization_config") ? "" : ", and no quantization_config in config.json"));
      }
    }
    settle_tied_head();
  }

  const ModelConfig& config() const override { return config_; }
  std::string stored_as() const override { return gguf_ ? smartkv::stored_as(*gguf_) : ""; }
  std::string format() const override {
    if (gguf_) return "GGUF v" + std::to_string(gguf_->version()) + " in a folder";
    return "safetensors (" + std::to_string(files_.size()) + (files_.size() == 1 ? " file)" : " files)");
  }
  std::vector<std::string> names() const override {
    std::vector<std::string> names;
    for (const auto& [name, tensor] : tensors_) names.push_back(name);
    return names;
  }
  std::optional<TensorView> find(std::string_view name) const override {
    const auto found = tensors_.find(name);
    return found == tensors_.end() ? std::nullopt : std::optional(found->second);
  }
  int64_t file_row(std::string_view name, int64_t row) const override {
    return is_rotated(name) ? half_split_row(config_, row) : row;
  }
  void read_rows(std::string_view name, int64_t first, int64_t count, float* out) const override {
    Weights::read_rows(name, first, count, out);
    if (!norms_add_one_ || !name.ends_with("norm.weight")) return;
    const int64_t n = count * find(name)->row_elements();
    for (int64_t i = 0; i < n; ++i) out[i] += 1.0f;
  }

 private:
  void read_tensors(const std::filesystem::path& folder) {
    std::set<std::string> files = {"model.safetensors"};
    if (!std::filesystem::exists(folder / "model.safetensors")) {
      if (std::filesystem::exists(folder / "model.safetensors.index.json")) {
        files = shard_names(folder / "model.safetensors.index.json");
      } else if (std::filesystem::exists(folder / "model.gguf")) {
        gguf_ = GgufFile::open(folder / "model.gguf");
        tensors_.insert(gguf_->tensors().begin(), gguf_->tensors().end());
        return;
      } else {
        throw ModelError(folder.string() +
                         ": expected model.safetensors, model.safetensors.index.json or model.gguf, found none");
      }
    }
    for (const std::string& file : files) files_.push_back(SafetensorsFile::open(folder / file));
    for (const SafetensorsFile& file : files_) {
      for (const auto& [name, tensor] : file.tensors()) {
        if (!tensors_.emplace(name, tensor).second) {
          throw ModelError(folder.string() + ": tensor \"" + name + "\" is in two files");
        }
      }
    }
  }

  // In the files of a model of texts and images, drops what is not of the text model and gives the rest its usual
  // names.
  void keep_text_model() {
    constexpr std::string_view kPrefixes[][2] = {{"language_model.model.", "model."},
                                                 {"model.language_model.", "model."},
                                                 {"language_model.lm_head.", "lm_head."}};
    constexpr std::string_view kImages[] = {"vision_tower.", "multi_modal_projector.", "model.vision_tower.",
                                            "model.multi_modal_projector."};
    if (find_architecture(config_.architecture)->text_name.empty()) return;
    TensorMap kept;
    for (auto& [name, tensor] : tensors_) {
      const auto begins = [&name](std::string_view prefix) { return name.starts_with(prefix); };
      if (std::ranges::any_of(kImages, begins)) continue;
      std::string text_name = name;
      for (const auto& [prefix, usual] : kPrefixes) {
        if (begins(prefix)) text_name = std::string(usual) + name.substr(prefix.size());
      }
      kept.emplace(std::move(text_name), std::move(tensor));
    }
    tensors_ = std::move(kept);
  }

  void rename_experts() {
    if (config_.n_experts == 0) return;
    TensorMap renamed;
    for (auto& [name, tensor] : tensors_) {
      const auto [at, added] = renamed.emplace(expert_tensor_name(name), std::move(tensor));
      if (!added) throw ModelError("tensors \"" + name + "\" and \"" + at->second.name + "\" are the same tensor");
    }
    tensors_ = std::move(renamed);
  }

  // A model with tied head and embedding keeps a separate head if the files have one that differs from the embedding
  // (transformers 5). If the files have only one of the two, it serves as both.
  void settle_tied_head() {
    const auto head = tensors_.find("lm_head.weight");
    if (!config_.tie_word_embeddings || head == tensors_.end()) return;
    const auto embedding = tensors_.find("model.embed_tokens.weight");
    if (embedding == tensors_.end()) {
      auto node = tensors_.extract(head);
      node.key() = "model.embed_tokens.weight";
      tensors_.insert(std::move(node));
    } else if (same_values(embedding->second, head->second)) {
      tensors_.erase(head);
    } else {
      config_.tie_word_embeddings = false;
    }
  }

  void add_generation_eos(const std::filesystem::path& folder) {
    const std::filesystem::path path = folder / "generation_config.json";
    if (!std::filesystem::exists(path)) return;
    const nlohmann::json json = read_json(path);
    const ConfigFields fields(json, "generation_config.json");
    if (!fields.has("eos_token_id")) return;
    for (const int32_t token : fields.token_ids("eos_token_id")) {
      auto& known = config_.eos_token_ids;
      if (std::find(known.begin(), known.end(), token) == known.end()) known.push_back(token);
    }
  }

  ModelConfig config_;
  bool norms_add_one_ = false;
  std::vector<SafetensorsFile> files_;
  std::optional<GgufFile> gguf_;  // The model.gguf of `smartkv quantize`; files_ is empty then.
  TensorMap tensors_;
};

}  // namespace

std::unique_ptr<Weights> open_hf_weights(const std::filesystem::path& folder) {
  return std::make_unique<HfWeights>(folder);
}

}  // namespace smartkv

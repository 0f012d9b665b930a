#include "engine/calibration/calibration.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <utility>

#include <xxhash.h>

#include "engine/calibration/calibration_texts.h"
#include "engine/calibration/measure_frontier.h"
#include "engine/calibration/measure_sensitivity.h"
#include "engine/log.h"
#include "engine/model/llama.h"
#include "engine/system_resources.h"
#include "engine/weights/model_fingerprint.h"
#include "engine/weights/safetensors.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

constexpr int64_t kMostTokens = 4096;               // of all texts together
constexpr int64_t kFrontierTokens = 2048;           // the same for the frontier: each policy reads them
constexpr int64_t kFewSides = 16;                   // K or V of a KV head: see calibrate()
constexpr int kVersion = 5;                         // of what is measured; a change makes older files useless
constexpr std::string_view kMeasured = "measured";  // key of the metadata: whether by_answers
constexpr std::string_view kAnswers = "answers", kChannels = "channels";
constexpr std::string_view kFrontier = "frontier";  // key of the metadata: frontier_json()

// Identifies what is measured: the texts, and how much of them is used.
std::string texts_id() {
  std::string all =
      std::to_string(kVersion) + ' ' + std::to_string(kMostTokens) + ' ' + std::to_string(kFrontierTokens);
  for (const EmbeddedFile& text : calibration_texts()) all += text.text();
  return std::to_string(XXH3_64bits(all.data(), all.size()));
}

// Calls function(name, values of a KV head, function(i) that returns the values of KV head i) for each tensor of a
// file.
template <typename Of, typename Function>
void for_each_tensor(Of& sensitivity, const Function& function) {
  const int64_t dim = sensitivity.head_dim;
  function("k.lambda", dim, [&](size_t i) -> auto& { return sensitivity.k[i].lambda; });
  function("k.mean", dim, [&](size_t i) -> auto& { return sensitivity.k[i].mean; });
  function("v.lambda", dim, [&](size_t i) -> auto& { return sensitivity.v[i].lambda; });
  function("v.mean", dim, [&](size_t i) -> auto& { return sensitivity.v[i].mean; });
  function("importance", ImportanceMap::n_features(dim),
           [&](size_t i) -> auto& { return sensitivity.importance[i].weights; });
}

// Returns how many tokens, at least 512, can be measured in a quarter of the memory: their queries, keys and values of
// all layers are held as f32, beside the cache.
int64_t tokens_that_fit(const ModelConfig& model, const CacheShape& shape) {
  const int64_t heads = 2 * shape.n_kv_heads + model.n_heads;
  const int64_t bytes = model.n_layers * heads * shape.head_dim * 4 + shape.bytes_per_token();
  return std::max<int64_t>(512, available_bytes() / 4 / bytes);
}

int64_t measured_tokens(const ModelConfig& model, const CacheShape& shape, int64_t most) {
  return std::min({most, model.context_length, tokens_that_fit(model, shape)});
}

std::string seconds_since(std::chrono::steady_clock::time_point start) {
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return std::to_string(std::lround(seconds));
}

// Writes the file of a calibration, unless its name is empty. Returns what became of it, for the log.
std::string keep(const std::filesystem::path& file, const Sensitivity& found) {
  if (file.empty()) return "not kept, because neither XDG_CACHE_HOME nor HOME is set";
  try {
    std::filesystem::create_directories(file.parent_path());
    write_sensitivity(file, found);
    return "kept in " + file.string();
  } catch (const std::exception& error) {
    log_warning(file.string() + " cannot be written (" + error.what() + "): the next start calibrates again");
    return "not kept";
  }
}

}  // namespace

std::filesystem::path calibration_file(const Weights& weights) {
  const auto in = [&](const char* variable, const char* folder) {
    const char* const value = std::getenv(variable);
    if (value == nullptr || *value == '\0') return std::filesystem::path();
    return std::filesystem::path(value) / folder / (model_fingerprint(weights) + ".safetensors");
  };
  const std::filesystem::path file = in("XDG_CACHE_HOME", "smartkv/calibrations");
  return file.empty() ? in("HOME", ".cache/smartkv/calibrations") : file;
}

Sensitivity read_sensitivity(const std::filesystem::path& file, const CacheShape& shape) {
  const SafetensorsFile from = SafetensorsFile::open(file);
  const auto texts = from.metadata().find("texts");
  if (texts == from.metadata().end() || texts->second != texts_id()) {
    throw ModelError(file.string() + ": expected a calibration with the texts of this program, found one with others");
  }
  Sensitivity result{shape.n_layers, shape.n_kv_heads, shape.head_dim, {}, {}, {}};
  const auto measured = from.metadata().find(std::string(kMeasured));
  result.by_answers = measured != from.metadata().end() && measured->second == kAnswers;
  if (const auto frontier = from.metadata().find(std::string(kFrontier)); frontier != from.metadata().end()) {
    try {
      result.frontier = read_frontier(nlohmann::json::parse(frontier->second));
    } catch (const std::exception& error) {
      throw ModelError(file.string() + ": " + error.what());
    }
  }
  const auto heads = static_cast<size_t>(shape.n_layers * shape.n_kv_heads);
  result.k.resize(heads);
  result.v.resize(heads);
  result.importance.resize(heads);
  for_each_tensor(result, [&](const std::string& name, int64_t width, const auto& values_of) {
    const auto found = from.tensors().find(name);
    const std::vector<int64_t> expected = {shape.n_layers, shape.n_kv_heads, width};
    if (found == from.tensors().end() || found->second.shape != expected || found->second.type != TensorType::kF32) {
      throw ModelError(file.string() + ": tensor \"" + name + "\": expected f32 [" + std::to_string(expected[0]) +
                       ", " + std::to_string(expected[1]) + ", " + std::to_string(expected[2]) + "]");
    }
    const auto* next = reinterpret_cast<const float*>(found->second.data.data());
    const bool is_lambda = name.ends_with("lambda");
    const auto fits = [&](float x) { return std::isfinite(x) && (!is_lambda || x >= 0); };
    for (size_t head = 0; head < heads; ++head, next += width) {
      std::vector<float>& values = values_of(head);
      values.assign(next, next + width);
      if (!std::ranges::all_of(values, fits)) {
        throw ModelError(file.string() + ": tensor \"" + name + "\": expected finite values" +
                         (is_lambda ? " of at least 0" : ""));
      }
    }
  });
  return result;
}

void write_sensitivity(const std::filesystem::path& file, const Sensitivity& sensitivity) {
  std::vector<NamedTensor> tensors;
  for_each_tensor(sensitivity, [&](const std::string& name, int64_t width, const auto& values_of) {
    NamedTensor& tensor = tensors.emplace_back();
    tensor.name = name;
    tensor.shape = {sensitivity.n_layers, sensitivity.n_kv_heads, width};
    for (size_t head = 0; head < sensitivity.k.size(); ++head) {
      const std::vector<float>& values = values_of(head);
      tensor.values.insert(tensor.values.end(), values.begin(), values.end());
    }
  });
  // Another process may write the same file.
  const std::filesystem::path unfinished = file.string() + "." + std::to_string(::getpid());
  write_safetensors(unfinished, tensors, TensorType::kF32,
                    {{"texts", texts_id()},
                     {std::string(kMeasured), std::string(sensitivity.by_answers ? kAnswers : kChannels)},
                     {std::string(kFrontier), frontier_json(sensitivity.frontier).dump()}});
  std::filesystem::rename(unfinished, file);
}

CalibrationTokens calibration_tokens(const Tokenizer& tokenizer, int64_t most, std::string_view folder) {
  std::vector<std::vector<TokenId>> texts;
  for (const EmbeddedFile& text : calibration_texts()) {
    if (text.file.substr(0, text.file.find('/')) == folder) texts.push_back(tokenizer.encode(text.text()));
  }
  size_t part = static_cast<size_t>(most) / (2 * texts.size());
  for (const std::vector<TokenId>& text : texts) part = std::min(part, text.size() / 2);
  CalibrationTokens result{{}, std::ssize(texts)};
  std::vector<TokenId>& tokens = result.tokens;
  for (const size_t half : {0, 1}) {
    for (const std::vector<TokenId>& text : texts) {
      const auto first = text.begin() + static_cast<std::ptrdiff_t>(half * part);
      tokens.insert(tokens.end(), first, first + static_cast<std::ptrdiff_t>(part));
    }
  }
  return result;
}

std::shared_ptr<const Sensitivity> find_sensitivity(const std::filesystem::path& file, const CacheShape& shape) {
  std::error_code error;
  if (shape.n_layers == 0 || file.empty() || !std::filesystem::exists(file, error)) return nullptr;
  try {
    return std::make_shared<const Sensitivity>(read_sensitivity(file, shape));
  } catch (const ModelError& problem) {
    log_warning(std::string(problem.what()) + "; it is not used");
    return nullptr;
  }
}

std::shared_ptr<const Sensitivity> calibrate(Model& model, const Weights& weights, const Tokenizer& tokenizer,
                                             const CacheShape& shape, ThreadPool& threads,
                                             const std::filesystem::path& file, bool by_answers,
                                             const std::function<void(double)>& progress) {
  if (auto known = find_sensitivity(file, shape); known != nullptr && known->by_answers >= by_answers) return known;
  const auto start = std::chrono::steady_clock::now();
  const std::vector<TokenId> tokens =
      calibration_tokens(tokenizer, measured_tokens(model.config(), shape, kMostTokens)).tokens;
  // Answers decide how the sides share the bytes. A few are compared at once, and big enough to show through the noise
  // of the served weights. They count as compared only if that was asked for, with exact weights.
  const bool compares = by_answers || 2 * shape.n_layers * shape.n_kv_heads <= kFewSides;
  Sensitivity found = measure_sensitivity(model, weights, shape, threads, tokens, compares, progress);
  found.by_answers = by_answers;
  const std::string kept = keep(file, found);
  log_info("calibrated " + model.config().name + " in " + seconds_since(start) + " s with " +
           std::to_string(tokens.size()) + " tokens" +
           (by_answers ? ""
            : compares ? " (`smartkv calibrate` measures its answers more exactly)"
                       : " by its channels (`smartkv calibrate` also measures its answers)") +
           "; " + kept);
  return std::make_shared<const Sensitivity>(std::move(found));
}

void calibrate_frontier(Model& model, const Tokenizer& tokenizer, const CacheShape& shape, ThreadPool& threads,
                        const std::filesystem::path& file, const std::shared_ptr<const Sensitivity>& sensitivity,
                        const std::function<void(double)>& progress) {
  const auto start = std::chrono::steady_clock::now();
  const CalibrationTokens text =
      calibration_tokens(tokenizer, measured_tokens(model.config(), shape, kFrontierTokens), "frontier");
  Sensitivity found = *sensitivity;
  found.frontier = measure_frontier(model, shape, threads, text.tokens, text.texts, sensitivity, progress);
  const std::string kept = keep(file, found);
  log_info("measured " + std::to_string(found.frontier.size()) + " policies that no cheaper one beats on " +
           model.config().name + " in " + seconds_since(start) + " s with " + std::to_string(text.tokens.size()) +
           " tokens; " + kept);
}

std::shared_ptr<const Sensitivity> Calibration::get() {
  const std::lock_guard lock(mutex_);
  if (const Find find = std::exchange(find_, nullptr); find != nullptr) found_ = find();
  return found_;
}

void Calibration::close() {
  const std::lock_guard lock(mutex_);
  find_ = nullptr;
}

std::shared_ptr<const Sensitivity> sensitivity_of(Model& model, const Weights& weights, const Tokenizer& tokenizer,
                                                  ThreadPool& threads, const ModelOptions& options) {
  const CacheShape shape = llama_cache_shape(weights.config(), options);
  const std::filesystem::path file = calibration_file(weights);
  if (options.backend != Backend::kNative || options.tensor_parallel > 1 || shape.n_layers == 0)
    return find_sensitivity(file, shape);
  return calibrate(model, weights, tokenizer, shape, threads, file);
}

std::function<std::shared_ptr<const Sensitivity>()> calibrated_on_demand(Model& model, const Weights& weights,
                                                                         ThreadPool& threads,
                                                                         const ModelOptions& options) {
  auto calibration = std::make_shared<Calibration>([&model, &weights, &threads, options] {
    return sensitivity_of(model, weights, *load_tokenizer(weights, options.path), threads, options);
  });
  return [calibration] { return calibration->get(); };
}

}  // namespace smartkv

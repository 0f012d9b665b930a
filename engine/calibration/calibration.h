// Finds out how much each channel of the KV cache matters to a model, once: the result is kept in a file.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "cache/policies/calibrated/sensitivity.h"
#include "engine/model/model.h"
#include "engine/model/model_options.h"
#include "engine/text/tokenizer.h"
#include "engine/weights/weights.h"

namespace smartkv {

class ThreadPool;

// Returns where the result of a model is kept: smartkv/calibrations below $XDG_CACHE_HOME or $HOME/.cache, by
// model_fingerprint(), for which all weights are read. Empty if neither variable is set.
std::filesystem::path calibration_file(const Weights& weights);
// Reads and writes a file: safetensors of f32 [n_layers, n_kv_heads, head_dim], "k.lambda", "k.mean", "v.lambda" and
// "v.mean". Its metadata name the texts and what was measured, and hold the frontier. Throw ModelError.
Sensitivity read_sensitivity(const std::filesystem::path& file, const CacheShape& shape);
void write_sensitivity(const std::filesystem::path& file, const Sensitivity& sensitivity);

// Tokens that a model is measured with: of each text of a folder of assets/ a part, then of each text a second part, so
// that much of what a part goes on with is far away. All parts have the same size.
struct CalibrationTokens {
  std::vector<TokenId> tokens;  // at most as many as were asked for
  int64_t texts = 0;
};
CalibrationTokens calibration_tokens(const Tokenizer& tokenizer, int64_t most, std::string_view folder = "calibration");

// Returns what `file` holds; null if there is no such file or it cannot be used, which is a warning. `file` may be
// empty.
std::shared_ptr<const Sensitivity> find_sensitivity(const std::filesystem::path& file, const CacheShape& shape);
// Returns what find_sensitivity() finds. If that is nothing, or less than by_answers asks for, measures the model and
// writes `file`. Logs what it did. by_answers, progress: as in measure_sensitivity().
std::shared_ptr<const Sensitivity> calibrate(Model& model, const Weights& weights, const Tokenizer& tokenizer,
                                             const CacheShape& shape, ThreadPool& threads,
                                             const std::filesystem::path& file, bool by_answers = false,
                                             const std::function<void(double)>& progress = nullptr);
// Measures the frontier of a model with this sensitivity, and writes both to `file`, which may be empty. Logs what it
// did. progress: as in measure_frontier().
void calibrate_frontier(Model& model, const Tokenizer& tokenizer, const CacheShape& shape, ThreadPool& threads,
                        const std::filesystem::path& file, const std::shared_ptr<const Sensitivity>& sensitivity,
                        const std::function<void(double)>& progress = nullptr);

// The sensitivity of a model that is about to be served. Until close() the model is idle, so that get() may measure it.
// get() is thread-safe.
class Calibration {
 public:
  using Find = std::function<std::shared_ptr<const Sensitivity>()>;  // may return null, and is called at most once
  explicit Calibration(Find find) : find_(std::move(find)) {}
  std::shared_ptr<const Sensitivity> get();  // null if it is not known
  void close();

 private:
  std::mutex mutex_;
  Find find_;
  std::shared_ptr<const Sensitivity> found_;
};

// Returns the result for a model that was loaded with these options. Only one process with native products measures,
// by channels; with others `smartkv calibrate` does it, and the result is null if it has not.
std::shared_ptr<const Sensitivity> sensitivity_of(Model& model, const Weights& weights, const Tokenizer& tokenizer,
                                                  ThreadPool& threads, const ModelOptions& options);
// Returns PolicyContext::load_sensitivity for commands that run a model. The first call calls sensitivity_of(). All
// references must outlive the result.
std::function<std::shared_ptr<const Sensitivity>()> calibrated_on_demand(Model& model, const Weights& weights,
                                                                         ThreadPool& threads,
                                                                         const ModelOptions& options);

}  // namespace smartkv

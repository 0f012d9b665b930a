// The options with which a model is loaded and served: their values, names and checks. None of this needs a model.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

#include <nlohmann/json_fwd.hpp>

#include "engine/model/llama_backend.h"
#include "engine/weights/model_config.h"

namespace smartkv {

enum class DataType : uint8_t { kAuto, kBf16, kF16, kF32 };
enum class WeightFormat : uint8_t { kAuto, kFile, kBf16, kF32, kInt8, kInt4 };
enum class Backend : uint8_t { kNative, kTorch };
enum class CudaGraphs : uint8_t { kAuto, kOn, kOff };
enum class WeightsLock : uint8_t { kOff, kOn };
enum class DraftCopy : uint8_t { kNone, kInt4 };

// Return the names of an enum's values in options, messages and JSON, in the order of the values.
constexpr std::array<const char*, 4> enum_names(DataType) { return {"auto", "bf16", "f16", "f32"}; }
constexpr std::array<const char*, 6> enum_names(WeightFormat) {
  return {"auto", "file", "bf16", "f32", "int8", "int4"};
}
constexpr std::array<const char*, 2> enum_names(Backend) { return {"native", "torch"}; }
constexpr std::array<const char*, 3> enum_names(CudaGraphs) { return {"auto", "on", "off"}; }
constexpr std::array<const char*, 2> enum_names(WeightsLock) { return {"off", "on"}; }
constexpr std::array<const char*, 2> enum_names(DraftCopy) { return {"none", "int4"}; }
constexpr std::array<const char*, 6> enum_names(RopeScaling) {
  return {"none", "linear", "dynamic", "llama3", "yarn", "longrope"};
}

template <typename E>
concept NamedEnum = std::is_enum_v<E> && requires { enum_names(E()); };
template <NamedEnum E>
inline constexpr auto kEnumNames = enum_names(E());
template <NamedEnum E>
constexpr std::string_view name(E value) {
  return kEnumNames<E>[static_cast<size_t>(value)];
}
// Returns the value with this name, if there is one.
template <NamedEnum E>
constexpr std::optional<E> from_name(std::string_view text) {
  const auto found = std::find(kEnumNames<E>.begin(), kEnumNames<E>.end(), text);
  if (found == kEnumNames<E>.end()) return std::nullopt;
  return static_cast<E>(found - kEnumNames<E>.begin());
}

// A RoPE scaling for a context longer than the model's own. It replaces the scaling that the model has.
struct RopeStretch {
  RopeScaling scaling = RopeScaling::kNone;  // one of kStretches
  double factor = 0;  // 0 for context_length divided by the model's own context; up to 1 scales nothing
};
inline constexpr std::array kStretches = {RopeScaling::kNone, RopeScaling::kLinear, RopeScaling::kDynamic,
                                          RopeScaling::kYarn};

// Reads the option rope_scaling: null, a name, or {"type": name, "factor": F}. Throws ModelError naming the member.
RopeStretch parse_rope_scaling(const nlohmann::json& option);
nlohmann::json rope_scaling_json(const RopeStretch& stretch);  // returns the option that parses to `stretch`

// How a model is loaded and served.
struct ModelOptions {
  std::filesystem::path path = {};  // GGUF file or Hugging Face folder
  // Type of the activations. auto is f32 if `weights` is f32, else bf16; f16 needs backend torch. The KV cache is f32
  // with f32 activations, else bf16.
  DataType dtype = DataType::kAuto;
  // Storage of the matrices.
  //  - file keeps the integers of a quantized file, and stores in bf16 the matrices that the file has as floats.
  //  - auto is f32 with dtype f32, and the type of the activations with backend torch. Otherwise it is the storage that
  //    `smartkv quantize` made the file for. For files of other programs it is `file` if they are quantized, else bf16.
  // Backend torch takes auto, bf16 and f32 only (auto only, if dtype is f16), and expands all integers.
  WeightFormat weights = WeightFormat::kAuto;
  WeightsLock weights_lock = WeightsLock::kOff;  // on locks the packed weights in memory; needs backend native
  Backend backend = Backend::kNative;            // of the matrix products: this project's kernels, or LibTorch
  std::string device = "cpu";  // cpu, or cuda:N with backend torch; products, caches and attention are there
  // Captures the work of small passes between two attention calls in CUDA graphs, and replays them. auto is on for a
  // GPU, and off for tensor-parallel models, which have no graphs.
  CudaGraphs cuda_graphs = CudaGraphs::kAuto;
  int tensor_parallel = 1;     // processes that compute the model together; more than 1 needs backend torch
  int threads = 0;             // sum over those processes; 0 for every core that this process may use
  int64_t context_length = 0;  // tokens; 0 for the model's own, times the factor of rope_scaling if it has one
  RopeStretch rope_scaling = {};
  bool int4_floats = false;  // with weights `file`, floats become 4-bit integers instead of bf16; draft models use it
  // Files of learned gates, and files of train-probe for policy channel_packed, by the name that requests use.
  std::map<std::string, std::filesystem::path> gates = {}, channel_worth = {};

  bool on_gpu() const { return device != "cpu"; }
};

ProductType product_type(const ModelOptions& options);  // returns the type of the activations, never auto

// Runs one check. The check throws if it fails, so a caller that wants to collect all errors catches what it throws.
using RunCheck = std::function<void(const std::function<void()>& check)>;
inline void run_check(const std::function<void()>& check) { check(); }
// Run a check that throws ModelError: unless `held`, with the message `otherwise`; if a number is below `minimum`, with
// a message that begins with the option's name.
void expect_option(const RunCheck& run, bool held, const std::string& otherwise);
void expect_at_least(const RunCheck& run, const std::string& option, int64_t minimum, int64_t found);

// Checks that each option is in range and goes with the others, one call of `run` for each check. A check throws
// ModelError. The message begins with the option's name.
void check_model_options(const ModelOptions& options, const RunCheck& run = run_check);

// Checks the context length that the options ask for against the model's own, `own` tokens.
//  - If rope_scaling has a factor and no context length is given, sets context_length to the factor times `own`.
//  - Logs a warning if the context is longer than the model's own.
//  - Throws ModelError if it is longer than rope_scaling allows, or if rope_scaling has neither a factor nor a longer
//    context.
void settle_context(int64_t own, ModelOptions* options);

// Returns the options of a model that drafts for `target` with `weights`, such as a 4-bit copy of it. Drafts run on the
// native backend and the CPU, in bf16 beside f16. REQUIRES: the context_length of `target` is settled.
ModelOptions draft_options(const ModelOptions& target, WeightFormat weights);
// Returns those of a smaller model. The factor of rope_scaling follows from its own context. Weights that its file has
// as floats take 4 bits instead of 16, because that saves more in bytes than it costs in acceptance. This does not
// apply to f32 activations, or if the weights are int8 or int4 anyway.
ModelOptions draft_model_options(const ModelOptions& target);

}  // namespace smartkv

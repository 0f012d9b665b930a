#include "engine/model/model_options.h"

#include <nlohmann/json.hpp>

#include "engine/log.h"
#include "engine/model/device.h"
#include "engine/weights/weights.h"

namespace smartkv {
namespace {

constexpr int kMostRopeFactor = 1024;

void check_weights(const ModelOptions& options, const RunCheck& run) {
  if (options.weights == WeightFormat::kAuto) return;
  const bool f32 = options.weights == WeightFormat::kF32, bf16 = options.weights == WeightFormat::kBf16;
  const bool f32_activations = product_type(options) == ProductType::kF32;
  std::string expected;
  if (options.dtype == DataType::kF16) {
    expected = "auto, which stores f16, with dtype f16";
  } else if (options.backend == Backend::kTorch && !bf16 && !f32) {
    expected = "auto, bf16 or f32 with backend torch";
  } else if (f32 != f32_activations) {
    expected = f32_activations ? "auto or f32 with dtype " : "auto, file, bf16, int8 or int4 with dtype ";
    expected += name(options.dtype);
  }
  expect_option(run, expected.empty(),
                "weights: expected " + expected + ", found \"" + std::string(name(options.weights)) + '"');
}

}  // namespace

RopeStretch parse_rope_scaling(const nlohmann::json& option) {
  const auto fail = [](const std::string& where, const std::string& expected, const nlohmann::json& found) {
    throw ModelError(where + ": expected " + expected + ", found " +
                     found.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace));
  };
  RopeStretch stretch;
  if (option.is_null()) return stretch;
  nlohmann::json type = option;
  if (option.is_object()) {
    type = option.value("type", option.value("rope_type", nlohmann::json()));
    for (const auto& [key, value] : option.items()) {
      if (key == "factor") {
        if (!value.is_number() || !(value >= 1) || !(value <= kMostRopeFactor)) {
          fail("rope_scaling.factor", "a number from 1 to " + std::to_string(kMostRopeFactor), value);
        }
        stretch.factor = value.get<double>();
      } else if (key != "type" && key != "rope_type") {
        fail("rope_scaling", "only the members type and factor", key);
      }
    }
  }
  const auto scaling = type.is_string() ? from_name<RopeScaling>(type.get_ref<const std::string&>()) : std::nullopt;
  if (!scaling || std::find(kStretches.begin(), kStretches.end(), *scaling) == kStretches.end()) {
    fail(option.is_object() ? "rope_scaling.type" : "rope_scaling", "none, linear, dynamic or yarn", type);
  }
  stretch.scaling = *scaling;
  return stretch;
}

nlohmann::json rope_scaling_json(const RopeStretch& stretch) {
  if (stretch.factor > 0) return {{"type", name(stretch.scaling)}, {"factor", stretch.factor}};
  return stretch.scaling == RopeScaling::kNone ? nlohmann::json() : nlohmann::json(name(stretch.scaling));
}

ProductType product_type(const ModelOptions& options) {
  if (options.dtype == DataType::kF16) return ProductType::kF16;
  const bool follows = options.dtype == DataType::kAuto && options.weights == WeightFormat::kF32;
  return follows || options.dtype == DataType::kF32 ? ProductType::kF32 : ProductType::kBf16;
}

void expect_option(const RunCheck& run, bool held, const std::string& otherwise) {
  run([&] {
    if (!held) throw ModelError(otherwise);
  });
}

void expect_at_least(const RunCheck& run, const std::string& option, int64_t minimum, int64_t found) {
  expect_option(run, found >= minimum,
                option + ": expected at least " + std::to_string(minimum) + ", found " + std::to_string(found));
}

void check_model_options(const ModelOptions& options, const RunCheck& run) {
  const auto expect = [&](bool held, const std::string& otherwise) { expect_option(run, held, otherwise); };
  const bool native = options.backend == Backend::kNative, graphs = options.cuda_graphs == CudaGraphs::kOn;
  const int ranks = options.tensor_parallel;
  expect_at_least(run, "threads", 0, options.threads);
  expect_at_least(run, "tensor_parallel", 1, ranks);
  expect_at_least(run, "context_length", 0, options.context_length);
  run([&] {
    check_device(options.device);
    if (native && options.on_gpu()) {
      throw ModelError("device: expected cpu, because backend native runs on the CPU, found \"" + options.device +
                       "\"; --backend torch supports GPUs");
    }
  });
  expect(!graphs || options.on_gpu(),
         "cuda_graphs: expected auto or off on device cpu, found \"on\"; CUDA graphs need a GPU (--device cuda:0)");
  expect(!native || options.dtype != DataType::kF16,
         "dtype: expected auto, bf16 or f32 with backend native, found \"f16\"; --backend torch supports it");
  check_weights(options, run);
  expect(native || options.weights_lock == WeightsLock::kOff,
         "weights_lock: expected off with backend torch, found \"on\"");
  if (ranks <= 1) return;
  expect(!native, "tensor_parallel: expected 1 with backend native, found " + std::to_string(ranks) +
                      "; --backend torch supports several ranks");
  expect(native || !graphs, "cuda_graphs: expected auto or off with tensor_parallel " + std::to_string(ranks) +
                                ", because ranks communicate within a pass, found \"on\"");
}

void settle_context(int64_t own, ModelOptions* options) {
  const auto& [scaling, given] = options->rope_scaling;
  int64_t& length = options->context_length;
  const bool scaled = scaling != RopeScaling::kNone, follows = scaled && given == 0;  // the factor, from `length`
  const int64_t longest = scaled ? static_cast<int64_t>(given * static_cast<double>(own)) : own;
  const int64_t most = kMostRopeFactor * own;
  if (length == 0 && scaled && !follows) length = longest;
  const std::string own_text = std::to_string(own), length_text = std::to_string(length);
  if (follows && length > most) {
    throw ModelError("context_length: expected at most " + std::to_string(most) + ", " +
                     std::to_string(kMostRopeFactor) + " times the model's own context length, found " + length_text);
  }
  if (follows && length <= own) {
    throw ModelError("rope_scaling: expected a factor, or a context_length beyond the model's own " + own_text +
                     ", found neither");
  }
  if (length <= own) return;
  if (!follows && length > longest) {
    throw ModelError(
        "context_length: expected at most " + std::to_string(longest) + ", the model's own " +
        (scaled ? own_text + " times the factor of rope_scaling, found " + length_text
                : "context length, found " + length_text + "; rope_scaling yarn, linear or dynamic extends it"));
  }
  log_warning("context_length: " + length_text + " exceeds the model's own " + own_text + "; rope_scaling " +
              std::string(name(scaling)) + " stretches positions, and answers to long prompts may be worse");
}

ModelOptions draft_options(const ModelOptions& target, WeightFormat weights) {
  return {.dtype = target.dtype == DataType::kF16 ? DataType::kBf16 : target.dtype,
          .weights = weights,
          .weights_lock = target.weights_lock,
          .context_length = target.context_length,
          .rope_scaling = target.rope_scaling};
}

ModelOptions draft_model_options(const ModelOptions& target) {
  const bool integers = target.weights == WeightFormat::kInt8 || target.weights == WeightFormat::kInt4;
  const bool reduce = product_type(target) != ProductType::kF32 && !integers;
  ModelOptions draft = draft_options(target, reduce ? WeightFormat::kFile : target.weights);
  draft.rope_scaling.factor = 0;
  draft.int4_floats = reduce;
  return draft;
}

}  // namespace smartkv

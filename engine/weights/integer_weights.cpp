#include "engine/weights/integer_weights.h"

#include <algorithm>
#include <cstring>

#include "engine/weights/config_fields.h"
#include "engine/weights/quantized_rows.h"
#include "engine/weights/required_tensors.h"

namespace smartkv {
namespace {

using Layout = PackedIntegers::Layout;

// Keys that describe how the weights were quantized and how other programs run them.
constexpr std::string_view kHarmlessIntegers[] = {
    // how they were quantized
    "desc_act", "sym", "static_groups", "true_sequential", "damp_percent", "damp_auto_increment", "mse", "dataset",
    "tokenizer", "batch_size", "model_seqlen", "cache_block_outputs", "pad_token_id", "quantizer", "model_name_or_path",
    "model_file_base_name", "meta", "lm_head", "block_name_to_quantize", "module_name_preceding_first_block",
    "modules_in_block_to_quantize", "modules_to_not_convert",
    // how they are run
    "use_cuda_fp16", "use_exllama", "disable_exllama", "exllama_config", "max_input_length", "backend", "do_fuse",
    "modules_to_fuse", "fuse_max_seq_len"};
constexpr FixedKey kFixedIntegers[] = {{"is_marlin_format", "false"}, {"pack_dtype", "\"int32\""}, {"dynamic", "{}"}};

Layout gptq_layout(const ConfigFields& fields) {
  const char* key = fields.has("checkpoint_format") ? "checkpoint_format" : "format";
  const std::string format = fields.has(key) ? fields.string(key) : "gptq";
  if (format != "gptq" && format != "gptq_v2") fields.fail(key, "\"gptq\" or \"gptq_v2\"");
  return format == "gptq" ? Layout::kGptq : Layout::kGptqV2;
}

// Reads and checks the tensors that make up one projection.
class Projection {
 public:
  Projection(const IntegerConfig& config, const std::string& file, const TensorMap& tensors, std::string name)
      : config_(config), file_(file), tensors_(tensors), name_(std::move(name)) {}

  TensorView view() const {
    auto integers = std::make_shared<PackedIntegers>();
    PackedIntegers& p = *integers;
    const int64_t per_word = 32 / config_.bits;
    const TensorView words = part("qweight");
    if (words.type != TensorType::kI32 || words.shape.size() != 2 || words.elements() == 0)
      fail("qweight", "a matrix of I32");
    const bool awq = config_.layout == Layout::kAwq;
    p.layout = config_.layout;
    p.bits = config_.bits;
    p.inputs = words.shape[0] * (awq ? 1 : per_word);
    p.outputs = words.shape[1] * (awq ? per_word : 1);
    if (p.outputs % per_word != 0) fail("qweight", "a multiple of " + std::to_string(per_word) + " outputs");
    p.q = words.data;
    const int64_t group = config_.group_size == -1 ? p.inputs : config_.group_size;
    const int64_t groups = (p.inputs + group - 1) / group;
    p.zeros = checked("qzeros", {groups, p.outputs / per_word}, true).data;
    const TensorView scales = checked("scales", {groups, p.outputs}, false);
    p.scales.resize(static_cast<size_t>(groups * p.outputs));
    expand_rows(scales, 0, groups, p.scales.data());
    p.group_of = groups_of(p.inputs, group, groups);
    p.symmetric = p.zeros_are_middle();
    p.order_inputs();
    return {name_ + ".weight",
            p.bits == 4 ? TensorType::kInt4 : TensorType::kInt8,
            {p.outputs, p.inputs},
            words.data,
            nullptr,
            std::move(integers)};
  }

 private:
  [[noreturn]] void fail(const std::string& suffix, const std::string& expected) const {
    throw ModelError(file_ + ": tensor \"" + name_ + "." + suffix + "\": expected " + expected);
  }
  TensorView part(const std::string& suffix) const {
    const auto found = tensors_.find(name_ + "." + suffix);
    if (found == tensors_.end()) fail(suffix, "the tensor to exist, found none");
    return found->second;
  }
  TensorView checked(const std::string& suffix, std::vector<int64_t> shape, bool whole) const {
    TensorView tensor = part(suffix);
    check_shape(name_ + "." + suffix, tensor, shape, file_);
    if ((tensor.type == TensorType::kI32) != whole) fail(suffix, whole ? "I32" : "floats");
    return tensor;
  }
  // Returns the group of each input. Groups are in order unless GPTQ's "act-order" has stored a g_idx.
  std::vector<int32_t> groups_of(int64_t inputs, int64_t group, int64_t groups) const {
    std::vector<int32_t> result(static_cast<size_t>(inputs));
    if (!tensors_.contains(name_ + ".g_idx")) {
      for (int64_t k = 0; k < inputs; ++k) result[k] = static_cast<int32_t>(k / group);
      return result;
    }
    const TensorView given = checked("g_idx", {inputs}, true);
    std::memcpy(result.data(), given.data.data(), given.data.size());
    for (const int32_t g : result) {
      if (g < 0 || g >= groups)
        fail("g_idx", "groups from 0 to " + std::to_string(groups - 1) + ", found " + std::to_string(g));
    }
    return result;
  }

  const IntegerConfig& config_;
  const std::string& file_;
  const TensorMap& tensors_;
  std::string name_;
};

bool has_bias(const ModelConfig& model, const std::string& projection) {
  return projection.find(".mlp.") != std::string::npos ? model.mlp_bias : model.attention_bias;
}

}  // namespace

IntegerConfig parse_integer_config(const nlohmann::json& quantization, const std::string& file) {
  const ConfigFields fields(quantization, file, "quantization_config.");
  IntegerConfig config;
  config.bits = fields.integer("bits");
  config.group_size = fields.integer("group_size");
  if (config.group_size != -1 && config.group_size < 1) fields.fail("group_size", "-1 or a positive number");
  if (fields.string("quant_method") == "awq") {
    config.layout = Layout::kAwq;
    if (config.bits != 4) fields.fail("bits", "4 with AWQ");
    if (fields.has("version") && fields["version"] != "gemm" && fields["version"] != "GEMM")
      fields.fail("version", "\"gemm\"");
    if (!fields.boolean("zero_point", true)) fields.fail("zero_point", "true");
  } else {
    config.layout = gptq_layout(fields);
    if (config.bits != 4 && config.bits != 8) fields.fail("bits", "4 or 8");
  }
  fields.refuse_unread(kHarmlessIntegers, kFixedIntegers);
  return config;
}

void attach_integers(const IntegerConfig& config, const ModelConfig& model, const std::string& file,
                     TensorMap& tensors) {
  std::vector<std::string> names;
  const std::string suffix = ".qweight";
  for (const auto& [name, tensor] : tensors) {
    if (name.ends_with(suffix)) names.push_back(name.substr(0, name.size() - suffix.size()));
  }
  for (const std::string& name : names) {
    TensorView view = Projection(config, file, tensors, name).view();
    for (const char* part : {".qweight", ".qzeros", ".scales", ".g_idx"}) tensors.erase(name + part);
    if (!tensors.emplace(name + ".weight", std::move(view)).second) {
      throw ModelError(file + ": tensors \"" + name + ".weight\" and \"" + name + ".qweight\" are the same matrix");
    }
    const auto bias = tensors.find(name + ".bias");
    if (bias == tensors.end() || has_bias(model, name)) continue;
    const auto zero = [](std::byte byte) { return byte == std::byte{0}; };
    if (std::all_of(bias->second.data.begin(), bias->second.data.end(), zero)) tensors.erase(bias);
  }
}

}  // namespace smartkv

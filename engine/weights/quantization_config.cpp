#include "engine/weights/quantization_config.h"

#include "engine/weights/config_fields.h"
#include "engine/weights/fp8.h"
#include "engine/weights/integer_weights.h"
#include "engine/weights/weights.h"

namespace smartkv {
namespace {

std::string method_of(const nlohmann::json& quantization, const std::string& file) {
  if (!quantization.is_object()) {
    throw ModelError(file + ": key \"quantization_config\": expected an object, found " +
                     quantization.dump().substr(0, 100));
  }
  const ConfigFields fields(quantization, file, "quantization_config.");
  std::string method = fields.string("quant_method");
  if (method != "fp8" && method != "gptq" && method != "awq" && method != "mxfp4")
    fields.fail("quant_method", "\"fp8\", \"gptq\", \"awq\" or \"mxfp4\"");
  return method;
}

}  // namespace

void check_quantization(const nlohmann::json& quantization, const std::string& file) {
  const std::string method = method_of(quantization, file);
  if (method == "fp8") {
    parse_fp8_config(quantization, file);
  } else if (method == "mxfp4") {  // of experts, whose tensors have names of their own
    const ConfigFields fields(quantization, file, "quantization_config.");
    fields.string("quant_method");
    constexpr std::string_view kHarmless[] = {"modules_to_not_convert", "dequantize"};
    fields.refuse_unread(kHarmless);
  } else {
    parse_integer_config(quantization, file);
  }
}

void apply_quantization(const nlohmann::json& quantization, const ModelConfig& model, const std::string& file,
                        TensorMap& tensors) {
  const std::string method = method_of(quantization, file);
  if (method == "fp8") {
    attach_fp8_scales(parse_fp8_config(quantization, file), file, tensors);
  } else if (method != "mxfp4") {
    attach_integers(parse_integer_config(quantization, file), model, file, tensors);
  }
}

}  // namespace smartkv

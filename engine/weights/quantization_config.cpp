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
  if (method != "fp8" && method != "gptq" && method != "awq")
    fields.fail("quant_method", "\"fp8\", \"gptq\" or \"awq\"");
  return method;
}

}  // namespace

void check_quantization(const nlohmann::json& quantization, const std::string& file) {
  if (method_of(quantization, file) == "fp8") {
    parse_fp8_config(quantization, file);
  } else {
    parse_integer_config(quantization, file);
  }
}

void apply_quantization(const nlohmann::json& quantization, const ModelConfig& model, const std::string& file,
                        TensorMap& tensors) {
  if (method_of(quantization, file) == "fp8") {
    attach_fp8_scales(parse_fp8_config(quantization, file), file, tensors);
  } else {
    attach_integers(parse_integer_config(quantization, file), model, file, tensors);
  }
}

}  // namespace smartkv

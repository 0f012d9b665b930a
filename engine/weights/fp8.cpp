#include "engine/weights/fp8.h"

#include <array>

#include "engine/weights/config_fields.h"
#include "engine/weights/required_tensors.h"

namespace smartkv {

Fp8Config parse_fp8_config(const nlohmann::json& quantization, const std::string& file) {
  const ConfigFields fields(quantization, file, "quantization_config.");
  fields.string("quant_method");
  // The types of the tensors show which modules are not converted. The scheme of activations does not concern weights.
  constexpr std::string_view kHarmless[] = {"modules_to_not_convert"};
  constexpr FixedKey kFixed[] = {{"fmt", "\"e4m3\""}, {"activation_scheme", "\"dynamic\""}};
  Fp8Config config;
  if (fields.has("weight_block_size")) {
    const std::vector<int64_t> block = fields.integers("weight_block_size", 1, 1 << 30);
    if (block.size() != 2) fields.fail("weight_block_size", "two positive numbers");
    config = {block[0], block[1]};
  }
  fields.refuse_unread(kHarmless, kFixed);
  return config;
}

void attach_fp8_scales(const Fp8Config& config, const std::string& file, TensorMap& tensors) {
  std::vector<std::string> used;
  for (auto& [name, tensor] : tensors) {
    if (tensor.type != TensorType::kF8E4m3 && tensor.type != TensorType::kF8E5m2) continue;
    auto scales = std::make_shared<WeightScales>();
    scales->block_rows = config.block_rows > 0 ? config.block_rows : tensor.rows();
    scales->block_columns = config.block_columns > 0 ? config.block_columns : tensor.row_elements();
    const int64_t rows = (tensor.rows() + scales->block_rows - 1) / scales->block_rows;
    scales->columns = (tensor.row_elements() + scales->block_columns - 1) / scales->block_columns;
    const auto found = tensors.find(name + "_scale_inv");
    // a scalar of any number of dimensions
    const bool single = found != tensors.end() && found->second.elements() == 1;
    const std::array<int64_t, 2> shape = {rows, scales->columns};
    if (!(single && rows * scales->columns == 1)) {
      check_shape(name + "_scale_inv", found == tensors.end() ? std::nullopt : std::optional(found->second), shape,
                  file);
    }
    scales->values.resize(static_cast<size_t>(rows * scales->columns));
    expand_rows(found->second, 0, found->second.rows(), scales->values.data());
    tensor.scales = std::move(scales);
    used.push_back(found->first);
  }
  for (const std::string& name : used) tensors.erase(name);
}

}  // namespace smartkv

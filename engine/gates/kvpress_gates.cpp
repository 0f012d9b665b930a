#include "engine/gates/kvpress_gates.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <string_view>
#include <vector>

#include "cache/policies/gated_eviction/head_gate.h"
#include "cache/policies/gated_eviction/hidden_gate.h"
#include "engine/gates/gate_tensors.h"
#include "engine/weights/mapped_file.h"

namespace smartkv {
namespace {

std::string layer_prefix(int64_t layer) { return "layers." + std::to_string(layer) + "."; }

// Throws CacheError unless the file has tensors of as many layers as the model. tensor: one that each layer has.
void check_layers(const SafetensorsFile& file, const std::string& tensor, const ModelConfig& model) {
  int64_t n = 0;
  while (file.tensors().contains(layer_prefix(n) + tensor)) ++n;
  if (n == model.n_layers) return;
  throw CacheError("the gates are for another model: expected " + std::to_string(model.n_layers) + " layers, found " +
                   std::to_string(n) + " with a tensor \"" + tensor + "\"");
}

std::shared_ptr<const Gate> read_kvzap(const SafetensorsFile& file, const ModelConfig& model, bool mlp) {
  const std::string first = mlp ? "0." : "", last = mlp ? "2." : "";
  check_layers(file, first + "weight", model);
  const int64_t inner = mlp ? gate_extent(file, layer_prefix(0) + "0.weight", 0, 2) : 0;
  if (inner % 2 != 0) {
    throw CacheError("tensor \"layers.0.0.weight\": expected an even number of rows, found " + std::to_string(inner));
  }
  std::vector<KvzapLayer> layers;
  for (const int64_t index : gated_layers(model)) {
    KvzapLayer& layer = layers.emplace_back();
    const auto read = [&](const std::string& map, int64_t out, int64_t in) {
      const std::string name = layer_prefix(index) + map;
      layer.maps.push_back(
          {read_gate_tensor(file, name + "weight", {out, in}), read_gate_tensor(file, name + "bias", {out})});
    };
    if (mlp) read(first, inner, model.hidden_size);
    read(last, model.n_kv_heads, mlp ? inner : model.hidden_size);
  }
  return make_kvzap_gate(model.hidden_size, model.n_kv_heads, inner, layers);
}

std::shared_ptr<const Gate> read_fast_kvzip(const SafetensorsFile& file, const ModelConfig& model) {
  check_layers(file, "q_proj.weight", model);
  const std::string zeroth = layer_prefix(0);
  const int64_t heads = model.n_kv_heads, dim = gate_extent(file, zeroth + "q_norm.weight", 0, 1),
                queries = gate_extent(file, zeroth + "b", 2, 3), bases = gate_extent(file, zeroth + "k_base", 2, 4);
  std::vector<FastKvzipLayer> layers;
  for (const int64_t index : gated_layers(model)) {
    const auto read = [&](const char* name, const std::vector<int64_t>& shape) {
      return read_gate_tensor(file, layer_prefix(index) + name, shape);
    };
    layers.push_back({.q = read("q_proj.weight", {heads * queries * dim, model.hidden_size}),
                      .q_bias = read("q_proj.bias", {heads * queries * dim}),
                      .k = read("k_proj.weight", {heads * dim, model.hidden_size}),
                      .q_norm = read("q_norm.weight", {dim}),
                      .k_norm = read("k_norm.weight", {dim}),
                      .bases = read("k_base", {heads, 1, bases, dim}),
                      .logit_bias = read("b", {heads, 1, queries})});
  }
  return make_fast_kvzip_gate({model.hidden_size, heads, queries, dim, bases}, layers);
}

// Returns the numbers of a line. `line` counts from 1.
std::vector<float> numbers_of(std::string_view text, size_t line) {
  constexpr std::string_view kBlanks = " \t\r";
  std::vector<float> numbers;
  for (;;) {
    text.remove_prefix(std::min(text.find_first_not_of(kBlanks), text.size()));
    if (text.empty()) return numbers;
    const std::string_view word = text.substr(0, text.find_first_of(kBlanks));
    double number = 0;
    const auto [rest, error] = std::from_chars(word.data(), word.data() + word.size(), number);
    if (error != std::errc() || rest != word.data() + word.size() || !std::isfinite(number)) {
      throw CacheError("line " + std::to_string(line) + ": expected a number, found \"" +
                       std::string(word.substr(0, 60)) + '"');
    }
    numbers.push_back(static_cast<float>(std::clamp(number, 0.0, 1.0)));
    text.remove_prefix(word.size());
  }
}

}  // namespace

std::shared_ptr<const Gate> read_kvpress_gate(const SafetensorsFile& file, const ModelConfig& model) {
  const auto has = [&](const char* tensor) { return file.tensors().contains(tensor); };
  if (has("layers.0.q_proj.weight") && has("layers.0.k_base")) return read_fast_kvzip(file, model);
  if (has("layers.0.0.weight") && has("layers.0.2.weight") && !has("layers.0.1.weight")) {
    return read_kvzap(file, model, true);
  }
  return has("layers.0.weight") ? read_kvzap(file, model, false) : nullptr;
}

std::shared_ptr<const Gate> read_duo_attention(const std::filesystem::path& file, const ModelConfig& model) {
  const MappedFile mapped(file);
  std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()), mapped.bytes().size());
  std::vector<std::vector<float>> lines;
  for (size_t line = 1; !text.empty(); ++line) {
    std::vector<float> numbers = numbers_of(text.substr(0, text.find('\n')), line);
    text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    if (numbers.empty()) continue;
    if (std::ssize(numbers) != model.n_kv_heads) {
      throw CacheError("line " + std::to_string(line) + ": expected " + std::to_string(model.n_kv_heads) +
                       " numbers, one for each KV head, found " + std::to_string(numbers.size()));
    }
    lines.push_back(std::move(numbers));
  }
  if (std::ssize(lines) != model.n_layers) {
    throw CacheError("the gates are for another model: expected " + std::to_string(model.n_layers) +
                     " lines, one for each layer, found " + std::to_string(lines.size()));
  }
  std::vector<float> scores;
  for (const int64_t layer : gated_layers(model)) {
    const std::vector<float>& line = lines[static_cast<size_t>(layer)];
    scores.insert(scores.end(), line.begin(), line.end());
  }
  return std::make_shared<HeadGate>(model.n_kv_heads, std::move(scores));
}

}  // namespace smartkv

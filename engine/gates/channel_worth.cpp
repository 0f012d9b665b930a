#include "engine/gates/channel_worth.h"

#include <cmath>
#include <fstream>

#include <nlohmann/json.hpp>

#include "cache/sequence_cache.h"

namespace smartkv {
namespace {

using nlohmann::json;

// Appends the numbers of a nested list, in row-major order. `lengths` are the expected lengths of the list and of the
// lists in it. Throws CacheError naming the place `name` in the file.
void flatten(const json& list, std::span<const int64_t> lengths, const std::string& name, std::vector<float>* numbers) {
  if (lengths.empty()) {
    if (!list.is_number() || !std::isfinite(list.get<float>()) || list.get<float>() < 0) {
      throw CacheError(name + ": expected a number of at least 0, found " + list.dump().substr(0, 60));
    }
    numbers->push_back(list.get<float>());
    return;
  }
  if (!list.is_array() || static_cast<int64_t>(list.size()) != lengths[0]) {
    throw CacheError(name + ": expected a list of length " + std::to_string(lengths[0]) + ", found " +
                     (list.is_array() ? std::to_string(list.size()) : list.dump().substr(0, 60)));
  }
  for (size_t i = 0; i < list.size(); ++i)
    flatten(list[i], lengths.subspan(1), name + "[" + std::to_string(i) + "]", numbers);
}

}  // namespace

std::shared_ptr<const ChannelWorth> load_channel_worth(const std::filesystem::path& file, const ModelConfig& model,
                                                       const std::string& identity) {
  try {
    if (!std::filesystem::is_regular_file(file)) throw CacheError("expected a file");  // opening a pipe would block
    std::ifstream in(file, std::ios::binary);
    if (!in) throw CacheError("cannot be read");
    const json all = json::parse(in, nullptr, false);
    if (all.is_discarded()) throw CacheError("expected JSON");
    if (!all.is_object() || !all.contains("layers") || !all.contains("values")) {
      throw CacheError("expected a JSON object with the members layers and values, as smartkv train-probe writes it");
    }
    if (all.value("model_identity", json()) != identity) {
      throw CacheError("model_identity: expected " + identity + " for the model \"" + model.name + "\", found " +
                       all.value("model_identity", json()).dump());
    }
    auto worth = std::make_shared<ChannelWorth>();
    const int64_t pairs[] = {model.n_full_layers(), model.n_kv_heads, model.head_dim / 2},
                  channels[] = {model.n_full_layers(), model.n_kv_heads, model.head_dim};
    flatten(all["layers"], pairs, "layers", &worth->keys);
    flatten(all["values"], channels, "values", &worth->values);
    return worth;
  } catch (const std::exception& error) {
    throw CacheError("file " + file.string() + ": " + error.what());
  }
}

}  // namespace smartkv

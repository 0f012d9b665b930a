#include "lab/training/training_inputs.h"

#include <fstream>
#include <iterator>
#include <stdexcept>

namespace smartkv {

int64_t whole(const nlohmann::json& json, const char* key, int64_t fallback, int64_t minimum) {
  const int64_t value = json.value(key, fallback);
  if (value >= minimum) return value;
  throw std::invalid_argument(std::string(key) + ": expected at least " + std::to_string(minimum) + ", found " +
                              std::to_string(value));
}

double positive(const nlohmann::json& json, const char* key, double fallback) {
  const double value = json.value(key, fallback);
  if (value > 0) return value;
  throw std::invalid_argument(std::string(key) + ": expected a positive number, found " + std::to_string(value));
}

std::string read_text(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw ModelError(path.string() + ": cannot be opened");
  return {std::istreambuf_iterator<char>(file), {}};
}

TokenWindows read_windows(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t context,
                          int64_t count) {
  const std::vector<TokenId> tokens = tokenizer.encode(read_text(path), {false, false});
  const auto available = static_cast<int64_t>(tokens.size());
  if (available < context * count) {
    throw ModelError(path.string() + ": " + std::to_string(count) + " windows of " + std::to_string(context) +
                     " tokens: expected at least " + std::to_string(context * count) + " tokens, found " +
                     std::to_string(available));
  }
  TokenWindows windows;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t first = count == 1 ? 0 : (available - context) * i / (count - 1);
    windows.emplace_back(tokens.begin() + first, tokens.begin() + first + context);
  }
  return windows;
}

}  // namespace smartkv

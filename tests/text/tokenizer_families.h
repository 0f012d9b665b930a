// The tokenizers and strings of families.json.
#pragma once

#include <string>

#include "tests/text/tokenizer_fixtures.h"

namespace smartkv {

// Repeats the strings of make_families.py, in their order.
class FamilyStrings {
 public:
  explicit FamilyStrings(const nlohmann::json& file) : file_(file), state_(file["seed"].get<uint64_t>()) {}

  std::string next() {
    std::string text;
    for (uint64_t n = number(14); n > 0; --n) {
      const uint64_t kind = number(10);
      if (kind < 6) {
        text += fragment();
      } else if (kind == 6) {
        text += static_cast<char>(32 + number(95));
      } else if (kind == 7) {
        const nlohmann::json& range = file_["ranges"][number(file_["ranges"].size())];
        const uint64_t low = range[0], high = range[1];
        utf8_append(text, static_cast<char32_t>(low + number(high - low + 1)));
      } else if (kind == 8) {
        text += static_cast<char>('a' + number(26));
        for (uint64_t marks = 1 + number(3); marks > 0; --marks)
          utf8_append(text, static_cast<char32_t>(0x300 + number(0x34e - 0x300 + 1)));
      } else {
        const std::string part = fragment();
        for (uint64_t times = 1 + number(5); times > 0; --times) text += part;
      }
    }
    return text;
  }
  uint64_t number(uint64_t bound) {
    uint64_t z = state_ += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % bound;
  }

 private:
  std::string fragment() { return file_["fragments"][number(file_["fragments"].size())]; }

  const nlohmann::json& file_;
  uint64_t state_;
};

// Returns the tokenizer.json of a family.
inline nlohmann::json family_tokenizer_json(const nlohmann::json& file, const std::string& family) {
  nlohmann::json json = file["families"][family];
  nlohmann::json model = file["models"][json["model"]["base"].get<std::string>()];
  json["model"].erase("base");
  model.update(json["model"]);
  json["model"] = model;
  return json;
}

}  // namespace smartkv

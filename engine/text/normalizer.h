// What a tokenizer does to text before it is cut: the normalizers of the Hugging Face tokenizers library.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "engine/text/json_node.h"
#include "engine/text/pattern.h"
#include "engine/text/unicode_text.h"

namespace smartkv {

struct NormalizerStep {
  std::function<std::string(std::string_view)> apply;  // valid UTF-8 to valid UTF-8
  int64_t shrinks = 1;  // A byte of the result stands for at most so many bytes of text. 0: for any number.
};

// Reads "normalizer" of tokenizer.json; null gives no steps. Throws TokenizerError naming the key at fault.
std::vector<NormalizerStep> read_normalizer(const JsonNode& node);

NormalizerStep normal_form_step(NormalForm form);
NormalizerStep replace_step(Pattern pattern, std::string content, int64_t shrinks = 0);
NormalizerStep prepend_step(std::string content);  // before a text that is not empty

}  // namespace smartkv

// The normalizers of the Hugging Face tokenizers library. A normalizer changes text before it is split.
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
  std::function<std::string(std::string_view)> apply;  // Turns valid UTF-8 into valid UTF-8. Thread-safe.
  int64_t shrinks = 1;  // The most bytes of text that a byte of the result stands for; 0 if there is no maximum.
};

// Reads "normalizer" of tokenizer.json. Returns no steps for null. Throws TokenizerError naming the key at fault.
std::vector<NormalizerStep> read_normalizer(const JsonNode& node);

NormalizerStep normal_form_step(NormalForm form);
// Replaces the matches of `pattern` by `content`. shrinks: see NormalizerStep.
NormalizerStep replace_step(Pattern pattern, std::string content, int64_t shrinks = 0);
NormalizerStep prepend_step(std::string content);  // Puts `content` before a text that is not empty.

}  // namespace smartkv

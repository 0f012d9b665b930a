#include "engine/text/gguf_pre_tokenizer.h"

#include <algorithm>

namespace smartkv {
namespace {

using PreSteps = std::vector<PreTokenizerStep>;

PreTokenizerStep step(const std::string& pattern) { return split_step(Pattern(pattern)); }
PreTokenizerStep gpt2_step() { return split_step(gpt2_pattern()); }

constexpr const char* kContractions = "(?i:'s|'t|'re|'ve|'m|'ll|'d)";

// The pattern of Llama 3 and Qwen 2. digits: the expression that matches a number.
PreTokenizerStep cl100k_step(const std::string& digits) {
  return step(kContractions + std::string(R"(|[^\r\n\p{L}\p{N}]?\p{L}+|)") + digits +
              R"(| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}

// The letters with case that DeepSeek LLM's tokenizer lists. Today's Unicode has more.
constexpr const char* kDeepseekLetters =
    R"(A-Za-z\x{b5}\x{c0}-\x{d6}\x{d8}-\x{f6}\x{f8}-\x{1ba}\x{1bc}-\x{1bf}\x{1c4}-\x{293}\x{295}-\x{2af})"
    R"(\x{370}-\x{373}\x{376}-\x{377}\x{37b}-\x{37d}\x{37f}\x{386}\x{388}-\x{38a}\x{38c}\x{38e}-\x{3a1})"
    R"(\x{3a3}-\x{3f5}\x{3f7}-\x{481}\x{48a}-\x{52f}\x{531}-\x{556}\x{10a0}-\x{10c5}\x{13a0}-\x{13f5})"
    R"(\x{13f8}-\x{13fd}\x{1c90}-\x{1cba}\x{1cbd}-\x{1cbf}\x{1d00}-\x{1d2b}\x{1d6b}-\x{1d77}\x{1d79}-\x{1d9a})"
    R"(\x{1e00}-\x{1f15}\x{1f18}-\x{1f1d}\x{1f20}-\x{1f45}\x{1f48}-\x{1f4d}\x{1f50}-\x{1f57}\x{1f59}\x{1f5b})"
    R"(\x{1f5d}\x{1f5f}-\x{1f7d}\x{1f80}-\x{1fb4}\x{1fb6}-\x{1fbc}\x{1fbe}\x{1fc2}-\x{1fc4}\x{1fc6}-\x{1fcc})"
    R"(\x{1fd0}-\x{1fd3}\x{1fd6}-\x{1fdb}\x{1fe0}-\x{1fec}\x{1ff2}-\x{1ff4}\x{1ff6}-\x{1ffc}\x{2102}\x{2107})"
    R"(\x{210a}-\x{2113}\x{2115}\x{2119}-\x{211d}\x{2124}\x{2126}\x{2128}\x{212a}-\x{212d}\x{212f}-\x{2134})"
    R"(\x{2139}\x{213c}-\x{213f}\x{2145}-\x{2149}\x{214e}\x{2183}-\x{2184}\x{2c00}-\x{2c7b}\x{2c7e}-\x{2ce4})"
    R"(\x{2ceb}-\x{2cee}\x{2cf2}-\x{2cf3}\x{a640}-\x{a66d}\x{a680}-\x{a69b}\x{a722}-\x{a76f}\x{a771}-\x{a787})"
    R"(\x{a78b}-\x{a78e}\x{ab70}-\x{abbf}\x{fb00}-\x{fb06}\x{fb13}-\x{fb17}\x{ff21}-\x{ff3a}\x{ff41}-\x{ff5a})"
    R"(\x{10400}-\x{1044f}\x{104b0}-\x{104d3}\x{104d8}-\x{104fb}\x{10c80}-\x{10cb2}\x{10cc0}-\x{10cf2})"
    R"(\x{118a0}-\x{118df}\x{1e900}-\x{1e943})";
// The characters from Samaritan to Han, and Hangul.
constexpr const char* kDeepseekOthers = R"([\x{800}-\x{9fa5}\x{ac00}-\x{d7ff}]+)";

constexpr const char* kUpper = R"([\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}])";
constexpr const char* kLower = R"([\p{Ll}\p{Lm}\p{Lo}\p{M}])";

// Words that end where an upper-case letter follows a lower-case one, for GPT-4o (with contractions) and Mistral's
// Tekken.
PreTokenizerStep cased_step(const std::string& contractions, const std::string& digits) {
  const std::string before = R"([^\r\n\p{L}\p{N}]?)", upper = kUpper, lower = kLower;
  return step(before + upper + "*" + lower + "+" + contractions + "|" + before + upper + "+" + lower + "*" +
              contractions + "|" + digits + R"(| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)");
}

PreSteps deepseek_v3_steps() {
  return {
      step(R"(\p{N}{1,3})"), step("[一-龥぀-ゟ゠-ヿ]+"),
      step(
          R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
          R"(|\s*[\r\n]+|\s+(?!\S)|\s+)")};
}

// The pattern of Qwen 3.5, in which combining marks belong to words.
PreTokenizerStep qwen35_step() {
  return step(
      kContractions +
      std::string(R"(|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)"));
}

bool is_one_of(const std::string& name, std::initializer_list<const char*> names) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

}  // namespace

bool ignores_merges(const std::string& pre) {
  return is_one_of(pre, {"llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "lfm2", "tekken"});
}

bool is_nfc(const std::string& pre) { return is_one_of(pre, {"qwen2", "qwen35", "olmo"}); }

std::optional<std::vector<PreTokenizerStep>> gguf_pre_tokenizer(const std::string& pre) {
  if (is_one_of(pre, {"smollm", "starcoder", "refact", "command-r"})) return PreSteps{step(R"(\p{N})"), gpt2_step()};
  if (is_one_of(pre, {"gpt-2", "default", "mpt", "olmo", "jais", "phi-2"})) return PreSteps{gpt2_step()};
  if (pre == "tekken") return PreSteps{cased_step("", R"(\p{N})")};
  if (ignores_merges(pre) || is_one_of(pre, {"dbrx", "smaug-bpe"})) return PreSteps{cl100k_step(R"(\p{N}{1,3})")};
  if (is_one_of(pre, {"qwen2", "deepseek-r1-qwen"})) return PreSteps{cl100k_step(R"(\p{N})")};
  if (pre == "qwen35") return PreSteps{qwen35_step()};
  if (is_one_of(pre, {"gpt-4o", "llama4"}))
    return PreSteps{cased_step(std::string(kContractions) + "?", R"(\p{N}{1,3})")};
  if (pre == "deepseek-v3") return deepseek_v3_steps();
  if (pre == "deepseek-llm") {
    return PreSteps{step(R"([\r\n])"),
                    step(std::string(R"(\s?[)") + kDeepseekLetters + "]+"),
                    step(R"(\s?[!-/:-~\x{ff01}-\x{ff0f}\x{ff1a}-\x{ff5e}\x{2018}-\x{201f}\x{3000}-\x{3002}]+)"),
                    step(R"(\s+$)"),
                    step(kDeepseekOthers),
                    step(R"(\p{N})")};
  }
  if (pre == "deepseek-coder") {
    return PreSteps{step(R"([\r\n])"), step(R"(\s?\p{L}+)"), step(R"(\s?\p{P}+)"), step(kDeepseekOthers),
                    step(R"(\p{N})")};
  }
  return std::nullopt;
}

std::string gguf_pre_tokenizer_names() {
  return "smollm, refact, gpt-2, default, olmo, llama-bpe, tekken, dbrx, qwen2, qwen35, deepseek-r1-qwen, gpt-4o, "
         "llama4, deepseek-v3, "
         "deepseek-llm or deepseek-coder";
}

}  // namespace smartkv

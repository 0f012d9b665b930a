#include "engine/text/normalizer.h"

#include "engine/text/byte_level.h"
#include "engine/text/precompiled_map.h"

namespace smartkv {
namespace {

using NormalizerSteps = std::vector<NormalizerStep>;

NormalizerStep lower_case_step() {
  return {[](std::string_view text) { return lower_case(text); }, 3};  // U+212A, which has 3 bytes, becomes k.
}

NormalizerStep strip_step(bool left, bool right) {
  return {[=](std::string_view text) { return std::string(strip_white_space(text, left, right)); }, 0};
}

void read_nmt(NormalizerSteps* steps) {
  steps->push_back(replace_step(Pattern(R"([\x01-\x08\x0b\x0e-\x1f\x7f\x{8f}\x{9f}])"), ""));
  steps->push_back(
      replace_step(Pattern(R"([\t\n\f\r\x{1680}\x{200b}-\x{200f}\x{2028}\x{2029}\x{2581}\x{feff}\x{fffd}])"), " "));
}

void read_bert(const JsonNode& node, NormalizerSteps* steps) {
  const bool lower = node["lowercase"].boolean_or(true);
  if (node["clean_text"].boolean_or(true)) {
    steps->push_back(replace_step(Pattern(R"([\0\x{fffd}[\p{Cc}\p{Cf}\p{Co}&&[^\t\n\r]]])"), ""));
    steps->push_back(replace_step(Pattern(R"(\s)"), " "));
  }
  if (node["handle_chinese_chars"].boolean_or(true)) {
    const std::string ideographs =
        R"([\x{3400}-\x{4dbf}\x{4e00}-\x{9fff}\x{f900}-\x{faff}\x{20000}-\x{2a6df}\x{2a700}-\x{2b81f})"
        R"(\x{2b920}-\x{2ceaf}\x{2f800}-\x{2fa1f}])";
    steps->push_back(replace_step(Pattern("(?=" + ideographs + ")"), " ", 1));
    steps->push_back(replace_step(Pattern("(?<=" + ideographs + ")"), " ", 1));
  }
  if (node["strip_accents"].boolean_or(lower)) {
    steps->push_back(normal_form_step(NormalForm::kNfd));
    steps->push_back(replace_step(Pattern(R"(\p{Mn})"), ""));
  }
  if (lower) steps->push_back(lower_case_step());
}

NormalizerStep precompiled_step(const JsonNode& charsmap) {
  const auto blob = decode_base64(charsmap.string());
  if (!blob) charsmap.fail("expected base64");
  try {
    const auto map = std::make_shared<PrecompiledMap>(*blob);
    return {[map](std::string_view text) { return map->apply(text); }, 0};
  } catch (const TokenizerError& error) {
    charsmap.fail(error.what());
  }
}

void read_normalizer_step(const JsonNode& node, NormalizerSteps* steps) {
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const JsonNode& child : node["normalizers"].items()) read_normalizer_step(child, steps);
  } else if (type == "NFC") {
    steps->push_back(normal_form_step(NormalForm::kNfc));
  } else if (type == "NFD") {
    steps->push_back(normal_form_step(NormalForm::kNfd));
  } else if (type == "NFKC") {
    steps->push_back(normal_form_step(NormalForm::kNfkc));
  } else if (type == "NFKD") {
    steps->push_back(normal_form_step(NormalForm::kNfkd));
  } else if (type == "Lowercase") {
    steps->push_back(lower_case_step());
  } else if (type == "StripAccents") {
    steps->push_back(replace_step(Pattern(R"(\p{M})"), ""));
  } else if (type == "Strip") {
    steps->push_back(strip_step(node["strip_left"].boolean(), node["strip_right"].boolean()));
  } else if (type == "Nmt") {
    read_nmt(steps);
  } else if (type == "BertNormalizer") {
    read_bert(node, steps);
  } else if (type == "Precompiled") {
    steps->push_back(precompiled_step(node["precompiled_charsmap"]));
  } else if (type == "Prepend") {
    steps->push_back(prepend_step(node["prepend"].string()));
  } else if (type == "Replace") {
    const JsonNode pattern = node["pattern"];
    const std::string content = node["content"].string();
    const bool grows = pattern.has("String") && pattern["String"].string().size() <= content.size();
    steps->push_back(replace_step(pattern.pattern(), content, grows ? 1 : 0));
  } else if (type == "ByteLevel") {
    steps->push_back({[](std::string_view text) { return to_stand_ins(text); }, 1});
  } else {
    node.unsupported();
  }
}

}  // namespace

NormalizerSteps read_normalizer(const JsonNode& node) {
  NormalizerSteps steps;
  if (!node.is_null()) read_normalizer_step(node, &steps);
  return steps;
}

NormalizerStep normal_form_step(NormalForm form) {
  // The extremes in Unicode 15: U+1D400 (4 bytes) becomes A by compatibility. U+0390 (2 bytes) is composed from 7
  // bytes.
  return {[form](std::string_view text) { return normal_form(text, form); }, 4};
}

NormalizerStep replace_step(Pattern pattern, std::string content, int64_t shrinks) {
  return {[pattern = std::move(pattern), content = std::move(content)](std::string_view text) {
            return pattern.replace(text, content);
          },
          shrinks};
}

NormalizerStep prepend_step(std::string content) {
  return {[content = std::move(content)](std::string_view text) {
            return text.empty() ? std::string() : content + std::string(text);
          },
          1};
}

}  // namespace smartkv

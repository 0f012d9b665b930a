#include "engine/text/text_decoder.h"

#include <array>
#include <charconv>
#include <utility>

#include "engine/text/byte_level.h"
#include "engine/text/utf8.h"

namespace smartkv {
namespace {

using DecoderSteps = std::vector<DecoderStep>;
using Texts = std::vector<std::string>;

void fuse(Texts* texts) {
  std::string whole;
  for (const std::string& text : *texts) whole += text;
  *texts = {std::move(whole)};
}

// Returns the byte of a byte token: 10 for "<0x0A>". Returns -1 for other tokens.
int fallback_byte(const std::string& text) {
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') return -1;
  unsigned value = 0;
  const char* const end = text.data() + 5;
  return std::from_chars(text.data() + 3, end, value, 16).ptr == end ? static_cast<int>(value) : -1;
}

// Joins the bytes of neighbouring byte tokens. If they are not valid UTF-8 together, each byte becomes U+FFFD in a
// whole text; in a part of a text they stay as they are.
void fall_back(Texts* texts, bool whole) {
  Texts out;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (whole && !utf8_is_valid(bytes)) {
      out.insert(out.end(), bytes.size(), "\xef\xbf\xbd");
    } else {
      out.push_back(bytes);
    }
    bytes.clear();
  };
  for (std::string& text : *texts) {
    if (const int byte = fallback_byte(text); byte >= 0) {
      bytes += static_cast<char>(byte);
    } else {
      flush();
      out.push_back(std::move(text));
    }
  }
  flush();
  *texts = std::move(out);
}

// Drops up to `start` of `content` from the beginning of the text and up to `stop` from its end.
void strip(std::string* text, const std::string& content, int64_t start, int64_t stop) {
  for (int64_t i = 0; i < start && text->starts_with(content); ++i) text->erase(0, content.size());
  for (int64_t i = 0; i < stop && text->ends_with(content); ++i) text->resize(text->size() - content.size());
}

DecoderStep replace_decoder(Pattern pattern, std::string content) {
  return [pattern = std::move(pattern), content = std::move(content)](Texts* texts, bool) {
    for (std::string& text : *texts) {
      if (pattern.is_literal() || utf8_is_valid(text)) text = pattern.replace(text, content);
    }
  };
}

// Strips each text. If `fused` is true, the texts have been joined, and a part from the middle of a text is not
// stripped.
DecoderStep strip_decoder(std::string content, int64_t start, int64_t stop, bool fused) {
  return [=, content = std::move(content)](Texts* texts, bool whole) {
    if (fused && !whole) return;
    for (std::string& text : *texts) strip(&text, content, start, stop);
  };
}

DecoderStep fuse_decoder() {
  return [](Texts* texts, bool) { fuse(texts); };
}

// Removes the spaces that tokenizers put around English punctuation and contractions.
void clean_up(std::string* text) {
  static const std::array<std::pair<Pattern, const char*>, 11> kRules = {{{Pattern::literal(" ."), "."},
                                                                          {Pattern::literal(" ?"), "?"},
                                                                          {Pattern::literal(" !"), "!"},
                                                                          {Pattern::literal(" ,"), ","},
                                                                          {Pattern::literal(" ' "), "'"},
                                                                          {Pattern::literal(" n't"), "n't"},
                                                                          {Pattern::literal(" 'm"), "'m"},
                                                                          {Pattern::literal(" do not"), " don't"},
                                                                          {Pattern::literal(" 's"), "'s"},
                                                                          {Pattern::literal(" 've"), "'ve"},
                                                                          {Pattern::literal(" 're"), "'re"}}};
  for (const auto& [pattern, content] : kRules) *text = pattern.replace(*text, content);
}

DecoderStep word_piece(std::string prefix, bool cleans) {
  return [prefix = std::move(prefix), cleans](Texts* texts, bool whole) {
    for (size_t i = 0; i < texts->size(); ++i) {
      std::string& text = (*texts)[i];
      if (whole && i == 0) {
      } else if (text.starts_with(prefix)) {
        text.erase(0, prefix.size());
      } else {
        text.insert(0, 1, ' ');
      }
      if (cleans) clean_up(&text);
    }
  };
}

DecoderStep word_suffix(std::string suffix) {
  return [pattern = Pattern::literal(std::move(suffix))](Texts* texts, bool whole) {
    for (size_t i = 0; i < texts->size(); ++i) {
      (*texts)[i] = pattern.replace((*texts)[i], whole && i + 1 == texts->size() ? "" : " ");
    }
  };
}

// Turns each `mark` into a space. If a mark was prepended to the text, drops the marks of the first token of a whole
// text instead.
DecoderStep unmark_spaces(const std::string& mark, bool prepended) {
  return [pattern = Pattern::literal(mark), prepended](Texts* texts, bool whole) {
    for (size_t i = 0; i < texts->size(); ++i) {
      (*texts)[i] = pattern.replace((*texts)[i], whole && prepended && i == 0 ? "" : " ");
    }
  };
}

DecoderStep read_metaspace_decoder(const JsonNode& node) {
  const std::string mark = node.has("replacement") ? node["replacement"].character() : std::string(kMetaspace);
  const JsonNode scheme = node["prepend_scheme"];
  if (scheme.is_null()) return unmark_spaces(mark, node["add_prefix_space"].boolean_or(true));
  const std::string name = scheme.string();
  if (name != "always" && name != "first" && name != "never") scheme.unsupported();
  return unmark_spaces(mark, name != "never");
}

// fused: the steps so far join all texts into one.
void read_decoder_step(const JsonNode& node, bool* fused, DecoderSteps* steps) {
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const JsonNode& child : node["decoders"].items()) read_decoder_step(child, fused, steps);
  } else if (type == "ByteLevel") {
    steps->push_back(decode_byte_level());
    *fused = true;
  } else if (type == "ByteFallback") {
    steps->push_back(fall_back);
  } else if (type == "Fuse") {
    steps->push_back(fuse_decoder());
    *fused = true;
  } else if (type == "Strip") {
    steps->push_back(strip_decoder(node["content"].character(), node["start"].count(), node["stop"].count(), *fused));
  } else if (type == "Replace") {
    steps->push_back(replace_decoder(node["pattern"].pattern(), node["content"].string()));
  } else if (type == "Metaspace") {
    steps->push_back(read_metaspace_decoder(node));
  } else if (type == "WordPiece") {
    steps->push_back(word_piece(node["prefix"].string(), node["cleanup"].boolean()));
  } else if (type == "BPEDecoder") {
    steps->push_back(word_suffix(node["suffix"].string()));
  } else {
    node.unsupported();
  }
}

}  // namespace

std::string decode_texts(const DecoderSteps& steps, Texts texts, bool whole) {
  for (const DecoderStep& step : steps) step(&texts, whole);
  fuse(&texts);
  return std::move(texts[0]);
}

DecoderSteps read_decoder(const JsonNode& node) {
  DecoderSteps steps;
  bool fused = false;
  read_decoder_step(node, &fused, &steps);
  return steps;
}

DecoderStep decode_byte_level() {
  return [](Texts* texts, bool) {
    for (std::string& text : *texts) text = from_stand_ins(text);
    fuse(texts);
  };
}

DecoderSteps sentencepiece_decoder(bool strips) {
  DecoderSteps steps = {replace_decoder(Pattern::literal(std::string(kMetaspace)), " "), fall_back, fuse_decoder()};
  if (strips) steps.push_back(strip_decoder(" ", 1, 0, true));
  return steps;
}

}  // namespace smartkv

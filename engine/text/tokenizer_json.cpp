#include "engine/text/tokenizer_json.h"

#include <algorithm>
#include <limits>
#include <unordered_map>

namespace smartkv {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxVocabulary = 1 << 21;
constexpr int kMaxDepth = 64;

// A JSON object with its place in the file, for errors.
class Node {
 public:
  Node(const Json& value, std::string path, const std::string& file)
      : value_(value), path_(std::move(path)), file_(file) {}

  [[noreturn]] void fail(const std::string& message) const {
    throw TokenizerError(file_ + ": " + path_ + ": " + message);
  }
  [[noreturn]] void unsupported() const {
    fail(value_.dump(-1, ' ', true, Json::error_handler_t::replace).substr(0, 120) + " is not supported");
  }
  const Json& json() const { return value_; }
  bool is_null() const { return value_.is_null(); }

  bool has(const char* key) const { return value_.is_object() && value_.contains(key) && !value_[key].is_null(); }
  Node operator[](const char* key) const {
    if (!value_.is_object()) fail("expected an object");
    static const Json kNull;
    return {value_.contains(key) ? value_[key] : kNull, path_.empty() ? key : path_ + "." + key, file_};
  }
  std::vector<Node> items() const {
    if (!value_.is_array()) fail("expected an array");
    std::vector<Node> nodes;
    for (size_t i = 0; i < value_.size(); ++i) {
      nodes.emplace_back(value_[i], path_ + "[" + std::to_string(i) + "]", file_);
    }
    return nodes;
  }
  std::string string() const {
    if (!value_.is_string()) fail("expected a string");
    return value_.get<std::string>();
  }
  std::string string_or(const std::string& otherwise) const { return is_null() ? otherwise : string(); }
  bool boolean_or(bool otherwise) const {
    if (is_null()) return otherwise;
    if (!value_.is_boolean()) fail("expected true or false");
    return value_.get<bool>();
  }
  TokenId token() const {
    if (!value_.is_number_unsigned() || value_.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabulary)) {
      fail("expected a token id below " + std::to_string(kMaxVocabulary));
    }
    return value_.get<TokenId>();
  }
  std::string type() const { return (*this)["type"].string(); }

 private:
  const Json& value_;
  std::string path_;
  const std::string& file_;
};

void read_normalizer(const Node& node, std::vector<NormalizerStep>* steps) {
  if (node.is_null()) return;
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const Node& child : node["normalizers"].items()) read_normalizer(child, steps);
  } else if (type == "Prepend") {
    steps->push_back({NormalizerStep::Kind::kPrepend, "", node["prepend"].string()});
  } else if (type == "Replace") {
    steps->push_back({NormalizerStep::Kind::kReplace, node["pattern"]["String"].string(), node["content"].string()});
  } else {
    node.unsupported();
  }
}

// Escapes what means something in a pattern.
std::string quoted(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) < 0x80 && !std::isalnum(static_cast<unsigned char>(c))) out += '\\';
    out += c;
  }
  return out;
}

void read_pre_tokenizer(const Node& node, BpeTokenizerSpec* spec) {
  using Kind = PreTokenizerStep::Kind;
  if (node.is_null()) return;
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const Node& child : node["pretokenizers"].items()) read_pre_tokenizer(child, spec);
  } else if (spec->bpe.byte_level) {
    node.fail("a step behind ByteLevel is not supported");  // it would see the stand-ins of bytes
  } else if (type == "ByteLevel") {
    spec->bpe.byte_level = true;
    if (node["add_prefix_space"].boolean_or(true)) spec->pre_tokenizer.push_back({Kind::kPrefixSpace});
    if (node["use_regex"].boolean_or(true)) spec->pre_tokenizer.push_back({Kind::kPattern, gpt2_pattern()});
  } else if (type == "Digits") {
    const bool individual = node["individual_digits"].boolean_or(false);
    spec->pre_tokenizer.push_back({Kind::kPattern, SplitPattern(individual ? R"(\p{N})" : R"(\p{N}+)")});
  } else if (type == "Split") {
    if (node["behavior"].string() != "Isolated") node["behavior"].unsupported();
    const Node pattern = node["pattern"];
    // Inverted, the pieces are the same: the matches and what lies between.
    const std::string regex = pattern.has("Regex") ? pattern["Regex"].string() : quoted(pattern["String"].string());
    spec->pre_tokenizer.push_back({Kind::kPattern, SplitPattern(regex)});
  } else if (type == "Metaspace") {
    if (node["replacement"].string_or("\xe2\x96\x81") != "\xe2\x96\x81") node["replacement"].unsupported();
    const std::string scheme = node.has("prepend_scheme")                  ? node["prepend_scheme"].string()
                               : node["add_prefix_space"].boolean_or(true) ? "always"
                                                                           : "never";
    PreTokenizerStep step{Kind::kMetaspace};
    step.prepend = scheme == "always"  ? PreTokenizerStep::Prepend::kAlways
                   : scheme == "first" ? PreTokenizerStep::Prepend::kFirst
                   : scheme == "never" ? PreTokenizerStep::Prepend::kNever
                                       : (node["prepend_scheme"].unsupported(), PreTokenizerStep::Prepend::kNever);
    step.split = node["split"].boolean_or(true);
    spec->pre_tokenizer.push_back(std::move(step));
  } else {
    node.unsupported();
  }
}

void read_post_processor(const Node& node, const std::vector<bool>& known, BpeTokenizerSpec* spec) {
  if (node.is_null()) return;
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const Node& child : node["processors"].items()) read_post_processor(child, known, spec);
  } else if (type == "TemplateProcessing") {
    std::vector<TokenId>* side = &spec->prefix;
    for (const Node& part : node["single"].items()) {
      if (part.has("Sequence")) {
        side = &spec->suffix;
        continue;
      }
      const std::string name = part["SpecialToken"]["id"].string();
      for (const Node& id : node["special_tokens"][name.c_str()]["ids"].items()) {
        if (id.token() >= static_cast<TokenId>(known.size()) || !known[static_cast<size_t>(id.token())]) {
          id.fail("expected the id of a token, found " + id.json().dump());
        }
        side->push_back(id.token());
      }
    }
  } else if (type != "ByteLevel") {  // ByteLevel trims offsets only
    node.unsupported();
  }
}

// What decode() does is in the vocabulary's kind; only the stripping of a leading space is the decoder's choice. The
// rest must say what is done anyway.
void read_decoder(const Node& node, BpeTokenizerSpec* spec) {
  const std::string type = node.type();
  if (type == "Sequence") {
    for (const Node& child : node["decoders"].items()) read_decoder(child, spec);
  } else if ((type == "ByteLevel") != spec->bpe.byte_level && type != "Fuse") {
    node.fail(std::string("does not fit a pre_tokenizer with") + (spec->bpe.byte_level ? "" : "out") + " ByteLevel");
  } else if (type == "Strip") {
    if (node["content"].string() != " " || node["start"].json() != 1 || node["stop"].json() != 0) node.unsupported();
    spec->strip_leading_space = true;
  } else if (type == "Replace") {
    if (node["pattern"]["String"].string() != "\xe2\x96\x81" || node["content"].string() != " ") node.unsupported();
  } else if (type == "Metaspace") {
    spec->strip_leading_space = node.has("prepend_scheme") ? node["prepend_scheme"].string() != "never"
                                                           : node["add_prefix_space"].boolean_or(true);
  } else if (type != "ByteLevel" && type != "ByteFallback" && type != "Fuse") {
    node.unsupported();
  }
}

void read_vocabulary(const Node& model, BpeTokenizerSpec* spec) {
  const Node vocab = model["vocab"];
  if (!vocab.json().is_object()) vocab.fail("expected an object");
  std::vector<std::string> contents(vocab.json().size());
  std::vector<bool> seen(contents.size());
  for (const auto& [content, id] : vocab.json().items()) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxVocabulary)) {
      const std::string found = id.is_number() ? id.dump() : id.type_name();
      vocab.fail("\"" + content + "\": expected a token id below " + std::to_string(kMaxVocabulary) + ", found " +
                 found);
    }
    const size_t index = id.get<size_t>();
    if (index >= contents.size()) {  // ids with gaps, which added tokens may fill
      contents.resize(index + 1);
      seen.resize(index + 1);
    }
    if (seen[index]) vocab.fail("id " + std::to_string(index) + " stands twice");
    seen[index] = true;
    contents[index] = content;
  }
  spec->contents = std::move(contents);
}

void read_merges(const Node& merges, const std::unordered_map<std::string, TokenId>& ids, BpeTokenizerSpec* spec) {
  for (const Node& merge : merges.items()) {
    std::string left, right;
    if (merge.json().is_string()) {
      const std::string text = merge.string();
      const size_t space = text.find(' ', 1);
      if (space == std::string::npos) merge.fail("expected two tokens, found \"" + text + "\"");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      const std::vector<Node> pair = merge.items();
      if (pair.size() != 2) merge.fail("expected two tokens");
      left = pair[0].string();
      right = pair[1].string();
    }
    const auto l = ids.find(left), r = ids.find(right);
    if (l == ids.end() || r == ids.end()) {
      merge.fail("\"" + (l == ids.end() ? left : right) + "\" is not in the vocabulary");
    }
    spec->merges.push_back({l->second, r->second, static_cast<int32_t>(spec->merges.size())});
  }
}

std::string special_content(const Json& value, const std::string& file, const char* key) {
  if (value.is_null()) return "";
  if (value.is_string()) return value.get<std::string>();
  if (value.is_object() && value.contains("content") && value["content"].is_string()) {
    return value["content"].get<std::string>();
  }
  throw TokenizerError(file + ": " + key + ": expected a string, or an object with content");
}

std::optional<bool> switch_of(const Json& config, const std::string& file, const char* key) {
  const Json value = config.value(key, Json());
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) throw TokenizerError(file + ": " + key + ": expected true or false");
  return value.get<bool>();
}

}  // namespace

Json parse_json(std::string_view text, const std::string& file) {
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kMaxDepth) throw TokenizerError(file + ": nested deeper than " + std::to_string(kMaxDepth) + " levels");
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::exception& error) {
    throw TokenizerError(file + ": " + error.what());
  }
}

TokenizerConfig parse_tokenizer_config(const Json& config, const std::string& file) {
  if (!config.is_object()) throw TokenizerError(file + ": expected an object");
  TokenizerConfig result;
  result.bos = special_content(config.value("bos_token", Json()), file, "bos_token");
  result.eos = special_content(config.value("eos_token", Json()), file, "eos_token");
  result.add_bos = switch_of(config, file, "add_bos_token");
  result.add_eos = switch_of(config, file, "add_eos_token");
  return result;
}

BpeTokenizerSpec parse_tokenizer_json(const Json& json, const TokenizerConfig& config, const std::string& file) {
  const Node root(json, "", file);
  const Node model = root["model"];
  if (model.has("type") && model.type() != "BPE") model["type"].unsupported();
  BpeTokenizerSpec spec;
  spec.bpe.byte_level = false;
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = model[key].json();
    if (!value.is_null() && value != "" && value != 0.0) model[key].unsupported();
  }
  spec.bpe.byte_fallback = model["byte_fallback"].boolean_or(false);
  spec.bpe.fuse_unknown = model["fuse_unk"].boolean_or(false);
  spec.bpe.ignore_merges = model["ignore_merges"].boolean_or(false);
  read_vocabulary(model, &spec);
  std::unordered_map<std::string, TokenId> ids;
  std::vector<bool> known(spec.contents.size());
  for (size_t id = 0; id < spec.contents.size(); ++id) {
    ids.emplace(spec.contents[id], static_cast<TokenId>(id));
    known[id] = !spec.contents[id].empty();
  }
  read_merges(model["merges"], ids, &spec);
  if (model.has("unk_token")) {
    const auto unknown = ids.find(model["unk_token"].string());
    if (unknown == ids.end()) model["unk_token"].fail("is not in the vocabulary");
    spec.bpe.unknown = unknown->second;
  }
  if (root.has("added_tokens")) {
    for (const Node& node : root["added_tokens"].items()) {
      AddedToken token{node["content"].string(), node["id"].token(), node["special"].boolean_or(false)};
      token.normalized = node["normalized"].boolean_or(!token.special);
      token.lstrip = node["lstrip"].boolean_or(false);
      token.rstrip = node["rstrip"].boolean_or(false);
      token.single_word = node["single_word"].boolean_or(false);
      ids.emplace(token.content, token.id);
      if (token.id >= static_cast<TokenId>(known.size())) known.resize(static_cast<size_t>(token.id) + 1);
      known[static_cast<size_t>(token.id)] = true;
      spec.added.push_back(std::move(token));
    }
  }
  read_normalizer(root["normalizer"], &spec.normalizer);
  read_pre_tokenizer(root["pre_tokenizer"], &spec);
  read_post_processor(root["post_processor"], known, &spec);
  if (root["decoder"].is_null()) root["decoder"].fail("expected a decoder, found none");
  read_decoder(root["decoder"], &spec);
  const auto special = [&](const std::string& content) -> std::optional<TokenId> {
    const auto found = ids.find(content);
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  spec.bos = special(config.bos);
  spec.eos = special(config.eos);
  return spec;
}

}  // namespace smartkv

#include "engine/text/tokenizer_json.h"

#include <fstream>
#include <sstream>

#include "engine/text/added_tokens_files.h"
#include "engine/text/end_tokens.h"

namespace smartkv {
namespace {

using Json = nlohmann::json;

constexpr int kJsonDepth = 64;

// Reads the id of a token that a post-processor adds. Throws TokenizerError if no token has the id.
TokenId known_token(const JsonNode& node, const std::vector<bool>& known) {
  const TokenId id = node.token();
  if (id >= static_cast<TokenId>(known.size()) || !known[static_cast<size_t>(id)]) {
    node.fail("expected a token id, found " + node.json().dump());
  }
  return id;
}

// The tokens that a post-processor puts around one text.
struct Frame {
  std::vector<TokenId> prefix, suffix;
};

Frame read_template(const JsonNode& node, const std::vector<bool>& known) {
  Frame frame;
  bool behind = false;
  const JsonNode single = node["single"];
  for (const JsonNode& part : single.items()) {
    if (part.has("Sequence")) {
      if (behind || part["Sequence"]["id"].string() != "A") single.unsupported();  // The text twice, or a second text.
      behind = true;
      continue;
    }
    const std::string name = part["SpecialToken"]["id"].string();
    for (const JsonNode& id : node["special_tokens"][name.c_str()]["ids"].items()) {
      (behind ? frame.suffix : frame.prefix).push_back(known_token(id, known));
    }
  }
  if (!behind) single.unsupported();
  return frame;
}

// Reads the id in a pair such as ["[CLS]", 101].
TokenId paired_token(const JsonNode& pair, const std::vector<bool>& known) {
  const std::vector<JsonNode> items = pair.items();
  if (items.size() != 2) pair.fail("expected a token and its id");
  return known_token(items[1], known);
}

void read_post_processor(const JsonNode& node, const std::vector<bool>& known, BpeTokenizerSpec* spec) {
  if (node.is_null()) return;
  const std::string type = node.type();
  Frame frame;
  if (type == "Sequence") {
    for (const JsonNode& child : node["processors"].items()) read_post_processor(child, known, spec);
  } else if (type == "TemplateProcessing") {
    frame = read_template(node, known);
  } else if (type == "BertProcessing" || type == "RobertaProcessing") {
    frame = {{paired_token(node["cls"], known)}, {paired_token(node["sep"], known)}};
  } else if (type != "ByteLevel") {  // ByteLevel only trims offsets.
    node.unsupported();
  }
  if (frame.prefix.empty() && frame.suffix.empty()) return;
  if (!spec->prefix.empty() || !spec->suffix.empty()) node.fail("a second processor that adds tokens is not supported");
  spec->prefix = frame.prefix;
  spec->suffix = frame.suffix;
}

void read_vocabulary(const JsonNode& model, BpeTokenizerSpec* spec) {
  const JsonNode vocab = model["vocab"];
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
    if (index >= contents.size()) {  // The ids have gaps, which added tokens may fill.
      contents.resize(index + 1);
      seen.resize(index + 1);
    }
    if (seen[index]) vocab.fail("id " + std::to_string(index) + " appears twice");
    seen[index] = true;
    contents[index] = content;
  }
  spec->contents = std::move(contents);
}

void parse_merges(const JsonNode& merges, const std::unordered_map<std::string, TokenId>& ids, BpeTokenizerSpec* spec) {
  for (const JsonNode& merge : merges.items()) {
    std::string left, right;
    if (merge.json().is_string()) {
      const std::string text = merge.string();
      const size_t space = text.find(' ', 1);
      if (space == std::string::npos) merge.fail("expected two tokens, found \"" + text + "\"");
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else {
      const std::vector<JsonNode> pair = merge.items();
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

std::optional<bool> switch_of(const Json& config, const std::string& file, const char* key) {
  const Json value = config.value(key, Json());
  if (value.is_null()) return std::nullopt;
  if (!value.is_boolean()) throw TokenizerError(file + ": " + key + ": expected true or false");
  return value.get<bool>();
}

}  // namespace

std::string read_text_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::stringstream text;
  if (!file || !(text << file.rdbuf())) throw TokenizerError(path.string() + ": cannot be read or is empty");
  return text.str();
}

Json parse_json(std::string_view text, const std::string& file) {
  const auto check_depth = [&](int depth, Json::parse_event_t, Json&) {
    if (depth > kJsonDepth)
      throw TokenizerError(file + ": nested deeper than " + std::to_string(kJsonDepth) + " levels");
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
  result.added = read_added_tokens_decoder(JsonNode(config, "", file)["added_tokens_decoder"]);
  add_special_tokens(config, file, &result);
  result.legacy = switch_of(config, file, "legacy");
  result.add_bos = switch_of(config, file, "add_bos_token");
  result.add_eos = switch_of(config, file, "add_eos_token");
  return result;
}

BpeTokenizerSpec parse_tokenizer_json(const Json& json, const TokenizerConfig& config, const std::string& file) {
  const JsonNode root(json, "", file);
  const JsonNode model = root["model"];
  if (model.has("type") && model.type() != "BPE") model["type"].unsupported();
  BpeTokenizerSpec spec;
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json& value = model[key].json();
    const bool is_empty = value.is_string() && value.get_ref<const std::string&>().empty();
    if (!value.is_null() && !is_empty && value != 0.0) model[key].unsupported();
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
  parse_merges(model["merges"], ids, &spec);
  if (model.has("unk_token")) {
    const auto unknown = ids.find(model["unk_token"].string());
    if (unknown == ids.end()) model["unk_token"].fail("is not in the vocabulary");
    spec.bpe.unknown = unknown->second;
  }
  if (root.has("added_tokens")) {
    for (const JsonNode& node : root["added_tokens"].items()) {
      AddedToken token = read_added_token(node, node["id"].token());
      token.id = ids.emplace(token.content, token.id).first->second;  // A token of the vocabulary keeps its id.
      if (token.id >= static_cast<TokenId>(known.size())) known.resize(static_cast<size_t>(token.id) + 1);
      known[static_cast<size_t>(token.id)] = true;
      spec.added.push_back(std::move(token));
    }
  }
  spec.normalizer = read_normalizer(root["normalizer"]);
  spec.pre_tokenizer = read_pre_tokenizer(root["pre_tokenizer"]);
  read_post_processor(root["post_processor"], known, &spec);
  if (root["decoder"].is_null()) root["decoder"].fail("expected a decoder, found none");
  spec.decoder = read_decoder(root["decoder"]);
  const auto special = [&](std::string_view content) -> std::optional<TokenId> {
    const auto found = ids.find(std::string(content));
    return found == ids.end() ? std::nullopt : std::optional(found->second);
  };
  spec.bos = special(config.bos);
  spec.eos = special(config.eos);
  spec.ends = find_end_tokens(special, spec.eos);
  return spec;
}

}  // namespace smartkv

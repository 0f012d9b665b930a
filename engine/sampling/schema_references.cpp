#include "engine/sampling/schema_references.h"

#include "engine/sampling/ebnf.h"
#include "engine/text/percent_encoding.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

std::string without_fragment(const std::string& uri) { return uri.substr(0, uri.find('#')); }

// Resolves a relative reference against the $id of the document `root_schema` (RFC 3986, section 5, without dot
// segments). Without such an $id the reference stays as it is.
std::string beside(const Json& root_schema, const std::string& relative) {
  const auto id = root_schema.find("$id");
  const std::string base = id != root_schema.end() && id->is_string() ? id->get<std::string>() : "";
  const size_t host = base.find("://");
  if (host == base.npos || relative.find("://") != relative.npos) return relative;
  const size_t root = base.find('/', host + 3);
  if (root == base.npos) return base + (relative.starts_with('/') ? "" : "/") + relative;
  return base.substr(0, relative.starts_with('/') ? root : base.rfind('/') + 1) + relative;
}

}  // namespace

void SchemaReferences::index(const Json& value) {
  if (value.is_array()) {
    for (const Json& one : value) index(one);
  }
  if (!value.is_object()) return;
  for (const auto& [key, member] : value.items()) {
    if (key == "enum" || key == "const" || key == "default" || key == "examples") continue;
    if (!member.is_string()) {
      index(member);
      continue;
    }
    const std::string& text = member.get_ref<const std::string&>();
    if (key == "$anchor") anchors_.emplace(text, &value);
    if (key != "$id" && key != "id") continue;
    if (text.starts_with('#')) anchors_.emplace(text.substr(1), &value);  // spelling up to draft 7
    ids_.emplace(without_fragment(text), &value);
    ids_.emplace(beside(root_, without_fragment(text)), &value);
  }
}

const Json& SchemaReferences::target(const Json& reference, const std::string& path) {
  if (!reference.is_string()) throw GrammarError(path + "$ref", "expected a string");
  const std::string text = reference.get<std::string>(), document = without_fragment(text);
  const std::string fragment =
      document.size() < text.size() ? percent_decoded(text.substr(document.size() + 1)) : "";  // RFC 6901, section 6
  const bool by_pointer = fragment.empty() || fragment.starts_with('/');
  if (!indexed_ && !(document.empty() && by_pointer)) {
    index(root_);
    indexed_ = true;
  }
  const Json* base = &root_;
  if (!document.empty()) {
    auto known = ids_.find(beside(root_, document));
    if (known == ids_.end()) known = ids_.find(document);
    if (known == ids_.end()) {
      throw GrammarError(path + "$ref",
                         "expected a reference within the schema, \"#...\" or an $id, found \"" + text + "\"");
    }
    base = known->second;
  }
  if (!by_pointer) {
    if (const auto known = anchors_.find(fragment); known != anchors_.end()) return *known->second;
  } else {
    try {
      return base->at(Json::json_pointer(fragment));
    } catch (const Json::exception&) {
    }
  }
  throw GrammarError(path + "$ref", "\"" + text + "\" does not exist in the schema");
}

}  // namespace smartkv

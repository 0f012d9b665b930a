#include "engine/speculation/spec.h"

#include <algorithm>
#include <array>
#include <string>

#include "cache/parameters.h"
#include "engine/engine.h"

namespace smartkv {
namespace {

using nlohmann::json;

// Names of DraftMethod, in its order.
constexpr std::array<std::string_view, 5> kMethodNames = {"off", "ngram", "draft_model", "self", "auto"};
constexpr int64_t kMaxTokens = 32, kMaxMatch = 8;
constexpr int64_t kLookupTokens = 10;

[[noreturn]] void invalid_speculative(const std::string& field, const std::string& expected, const json& found) {
  throw RequestError(
      RequestError::Kind::kInvalid, field,
      field + ": expected " + expected + ", found " + found.dump(-1, ' ', false, json::error_handler_t::replace));
}

DraftMethod read_method(const std::string& field, const json& value) {
  std::string names;
  for (size_t i = 0; i < kMethodNames.size(); ++i) {
    if (value.is_string() && value.get_ref<const std::string&>() == kMethodNames[i]) return static_cast<DraftMethod>(i);
    names += (names.empty() ? "\"" : ", \"") + std::string(kMethodNames[i]) + '"';
  }
  invalid_speculative(field, "one of " + names, value);
}

bool looks_up(DraftMethod method) { return method == DraftMethod::kNgram || method == DraftMethod::kAuto; }
bool has_cache(DraftMethod method) { return method != DraftMethod::kOff && method != DraftMethod::kNgram; }

void read_parameters(json field, SpeculationSpec* spec) {
  field.erase("method");
  Parameters read(std::string(name(spec->method)), field, "speculative", "method");
  if (spec->method != DraftMethod::kOff) {
    spec->tokens = read.integer("tokens", spec->tokens, 1, kMaxTokens);
    spec->adaptive = read.boolean("adaptive", spec->adaptive);
  }
  if (looks_up(spec->method)) {
    spec->ngram_min = read.integer("ngram_min", spec->ngram_min, 1, kMaxMatch);
    spec->ngram_max = read.integer("ngram_max", std::max(spec->ngram_min, spec->ngram_max), spec->ngram_min, kMaxMatch);
  }
  if (has_cache(spec->method)) spec->kv_cache = read.value("kv_cache");
  if (spec->method == DraftMethod::kSelf) {
    spec->int4 = read.choice("weights", "auto", {"auto", "int4"}) == "int4";
    spec->offload = read.boolean("offload", false);
  }
  read.done();
}

}  // namespace

std::string_view name(DraftMethod method) { return kMethodNames[static_cast<size_t>(method)]; }

SpeculationSpec parse_speculation(const json& field) {
  SpeculationSpec spec;
  if (field.is_null()) return spec;
  if (field.is_string()) {
    spec.method = read_method("speculative", field);
  } else if (!field.is_object()) {
    invalid_speculative("speculative", "null, the name of a method or {\"method\": name, ...}", field);
  } else if (!field.contains("method")) {
    invalid_speculative("speculative.method", "the name of a method", nullptr);
  } else {
    spec.method = read_method("speculative.method", field["method"]);
  }
  if (looks_up(spec.method)) spec.tokens = kLookupTokens;
  if (!field.is_object()) return spec;
  try {
    read_parameters(field, &spec);
  } catch (const ParameterError& error) {
    throw RequestError(RequestError::Kind::kInvalid, error.field(), error.what());
  }
  return spec;
}

}  // namespace smartkv

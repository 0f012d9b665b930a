#include "engine/speculation/spec.h"

#include <array>
#include <string>

#include "engine/engine.h"

namespace smartkv {
namespace {

using nlohmann::json;

constexpr std::array kMethods = {DraftMethod::kOff, DraftMethod::kNgram, DraftMethod::kDraftModel, DraftMethod::kSelf,
                                 DraftMethod::kAuto};
constexpr int64_t kMaxTokens = 32, kMaxMatch = 8;
constexpr int64_t kLookupTokens = 10;

[[noreturn]] void invalid(const std::string& field, const std::string& expected, const json& found) {
  throw RequestError(RequestError::Kind::kInvalid, field,
                     field + ": expected " + expected + ", found " +
                         found.dump(-1, ' ', false, json::error_handler_t::replace));
}

DraftMethod read_method(const std::string& field, const json& value) {
  std::string names;
  for (const DraftMethod method : kMethods) {
    if (value == name(method)) return method;
    names += (names.empty() ? "\"" : ", \"") + std::string(name(method)) + '"';
  }
  invalid(field, "one of " + names, value);
}

int64_t read_integer(const std::string& field, const json& value, int64_t min, int64_t max) {
  // Unsigned numbers beyond int64 would wrap around.
  const bool fits = value.is_number_integer() && (!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX);
  if (fits && value >= min && value <= max) return value.get<int64_t>();
  invalid(field, "an integer in [" + std::to_string(min) + ", " + std::to_string(max) + "]", value);
}

bool looks_up(DraftMethod method) { return method == DraftMethod::kNgram || method == DraftMethod::kAuto; }
bool has_cache(DraftMethod method) { return method != DraftMethod::kOff && method != DraftMethod::kNgram; }

void read_parameters(const json& field, SpeculationSpec* spec) {
  for (const auto& [key, value] : field.items()) {
    if (key == "method" || value.is_null()) continue;
    const std::string path = "speculative." + key;
    if (key == "tokens" && spec->method != DraftMethod::kOff) {
      spec->tokens = read_integer(path, value, 1, kMaxTokens);
    } else if (key == "adaptive" && spec->method != DraftMethod::kOff) {
      if (!value.is_boolean()) invalid(path, "true or false", value);
      spec->adaptive = value.get<bool>();
    } else if (key == "ngram_min" && looks_up(spec->method)) {
      spec->ngram_min = read_integer(path, value, 1, kMaxMatch);
    } else if (key == "ngram_max" && looks_up(spec->method)) {
      spec->ngram_max = read_integer(path, value, 1, kMaxMatch);
    } else if (key == "kv_cache" && has_cache(spec->method)) {
      spec->kv_cache = value;
    } else if (key == "weights" && spec->method == DraftMethod::kSelf) {
      if (value != "auto" && value != "int4") invalid(path, "\"auto\" (the model's own) or \"int4\"", value);
      spec->int4 = value == "int4";
    } else {
      throw RequestError(RequestError::Kind::kInvalid, path,
                         path + ": method \"" + std::string(name(spec->method)) + "\" has no parameter \"" + key + "\"");
    }
  }
  if (spec->ngram_max < spec->ngram_min) {
    if (field.contains("ngram_max") && !field["ngram_max"].is_null()) {
      invalid("speculative.ngram_max", "an integer >= ngram_min = " + std::to_string(spec->ngram_min), spec->ngram_max);
    }
    spec->ngram_max = spec->ngram_min;
  }
}

}  // namespace

std::string_view name(DraftMethod method) {
  switch (method) {
    case DraftMethod::kOff: return "off";
    case DraftMethod::kNgram: return "ngram";
    case DraftMethod::kDraftModel: return "draft_model";
    case DraftMethod::kSelf: return "self";
    case DraftMethod::kAuto: return "auto";
  }
  return "off";
}

SpeculationSpec parse_speculation(const json& field) {
  SpeculationSpec spec;
  if (field.is_null()) return spec;
  if (field.is_string()) {
    spec.method = read_method("speculative", field);
  } else if (!field.is_object()) {
    invalid("speculative", "null, a method's name, or {\"method\": name, ...}", field);
  } else if (!field.contains("method")) {
    invalid("speculative.method", "a method's name", nullptr);
  } else {
    spec.method = read_method("speculative.method", field["method"]);
  }
  if (looks_up(spec.method)) spec.tokens = kLookupTokens;
  if (field.is_object()) read_parameters(field, &spec);
  return spec;
}

}  // namespace smartkv

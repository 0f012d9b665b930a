#include "engine/sampling/string_grammar.h"

#include <algorithm>
#include <cmath>

#include "engine/sampling/regex_grammar.h"

namespace smartkv {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMostLength = 1'000'000'000, kMostMinLength = 4096;
constexpr size_t kMostNameCharacters = 256;

// Formats as regular expressions. They match only texts that every reader accepts, which is less than the standards
// allow: years of four digits from 1000, lower limits for host names and addresses, no quoted local parts.
const std::map<std::string, std::string>& formats() {
  static const std::map<std::string, std::string> table = [] {
    const std::string leap = "([12]\\d(0[48]|[2468][048]|[13579][26])|(12|16|20|24|28)00)-02-29";
    const std::string date =
        "([12]\\d{3}-((0[13578]|1[02])-(0[1-9]|[12]\\d|3[01])|(0[469]|11)-(0[1-9]|[12]\\d|30)|02-(0[1-9]|1\\d|2[0-8]))"
        "|" +
        leap + ")";
    const std::string time = "([01]\\d|2[0-3]):[0-5]\\d:[0-5]\\d(\\.\\d{1,6})?(Z|[+-]([01]\\d|2[0-3]):[0-5]\\d)";
    const std::string label = "[a-z0-9]([a-z0-9-]{0,14}[a-z0-9])?";
    const std::string host = label + "(\\." + label + "){0,3}";
    const std::string byte = "(25[0-5]|2[0-4]\\d|1\\d\\d|[1-9]?\\d)";
    const std::string clock = "(\\d{1,9}H(\\d{1,9}M)?(\\d{1,9}S)?|\\d{1,9}M(\\d{1,9}S)?|\\d{1,9}S)";
    const std::string days = "(\\d{1,9}Y(\\d{1,9}M)?(\\d{1,9}D)?|\\d{1,9}M(\\d{1,9}D)?|\\d{1,9}D)";
    return std::map<std::string, std::string>{
        {"date", date},
        {"time", time},
        {"date-time", date + "T" + time},
        {"duration", "P(" + days + "(T" + clock + ")?|T" + clock + "|\\d{1,9}W)"},
        {"email", "[A-Za-z0-9_+-]+(\\.[A-Za-z0-9_+-]+){0,2}@" + label + "(\\." + label + "){0,2}\\.[a-z]{2,8}"},
        {"hostname", host},
        {"ipv4", byte + "(\\." + byte + "){3}"},
        {"ipv6", "([0-9a-f]{1,4}:){7}[0-9a-f]{1,4}|::([0-9a-f]{1,4}:){0,5}[0-9a-f]{1,4}"},
        {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
        {"json-pointer", "(/[A-Za-z0-9._-]*)*"},
        {"relative-json-pointer", "(0|[1-9]\\d{0,3})(#|(/[A-Za-z0-9._-]*)*)"},
        {"uri", "[a-z][a-z0-9+.-]{0,15}://" + host +
                    "(:[1-9]\\d{0,3})?(/[A-Za-z0-9._~-]*)*(\\?[A-Za-z0-9._~=&-]*)?(#[A-Za-z0-9._~-]*)?"},
    };
  }();
  return table;
}

// Formats that allow every text of another format. The expression of the other format is used.
constexpr std::pair<std::string_view, std::string_view> kWider[] = {
    {"idn-email", "email"},   {"idn-hostname", "hostname"}, {"iri", "uri"}, {"uri-reference", "uri"},
    {"iri-reference", "uri"}, {"uri-template", "uri"},      {"url", "uri"}, {"ip", "ipv4"}};

int64_t length(const Json& schema, const char* key, int64_t otherwise) {
  const auto value = schema.find(key);
  if (value == schema.end()) return otherwise;
  const bool whole = value->is_number() && *value >= 0 && value->get<double>() == std::floor(value->get<double>());
  if (!whole) throw GrammarError(key, "expected an integer >= 0");
  return *value > kMostLength ? kMostLength + 1 : value->get<int64_t>();
}

// Returns the rule for up to `most` characters and the closing quote. Compiling tries all tokens for each state, which
// takes 20 ms with a large vocabulary. Strings of all lengths therefore share the states near their end. A longer
// repetition is one more state, followed by a tail of kShared for XGrammar.
std::string short_rest(int64_t most, EbnfGrammar* grammar) {
  constexpr int64_t kShared = 24;
  const std::string quote = "\"\\\"\"", plain = ebnf_class(plain_json_characters());
  std::string rest = grammar->add(quote);
  for (int64_t i = 0; i < std::min(most, kShared - (most > kShared)); ++i)
    rest = grammar->add(quote + " | " + plain + " " + rest);
  if (most <= kShared) return rest;
  return grammar->add(rest + " | " + plain + "{" + std::to_string(kShared) + "," + std::to_string(most) + "} " + quote);
}

// Returns the expression for a string that only its length bounds. The shape of the grammar matters: for a
// tail-recursive rule over character classes XGrammar makes the masks when it compiles; it would follow a repeated
// group token by token.
std::string free_string(int64_t least, int64_t most, EbnfGrammar* grammar) {
  if (least > kMostMinLength)
    throw GrammarError("minLength", "more than " + std::to_string(kMostMinLength) + " is not supported");
  const std::string plain = ebnf_class(plain_json_characters());
  const std::string start = "\"\\\"\" " + (least == 0 ? "" : plain + '{' + std::to_string(least) + "} ");
  if (most != kUnbounded) return start + short_rest(most - least, grammar);
  return start + grammar->recursive([&](const std::string& rest) {
    return "\"\\\"\" | " + plain + " " + rest + " | " + json_escape_ebnf() + " " + rest;
  });
}

// Returns the rule for the rest of a name, including the closing quote, that differs from all `rests`.
std::string other_rest(const std::vector<std::vector<uint32_t>>& rests, EbnfGrammar* grammar) {
  std::map<uint32_t, std::vector<std::vector<uint32_t>>> by_first;
  bool may_end = true;
  for (const std::vector<uint32_t>& rest : rests) {
    if (rest.empty()) {
      may_end = false;
    } else {
      by_first[rest[0]].emplace_back(rest.begin() + 1, rest.end());
    }
  }
  const CodePoints& plain_characters = plain_json_characters();
  CodePoints taken;
  for (const auto& [first, more] : by_first) taken.emplace_back(first, first);
  std::string body = ebnf_class(without(plain_characters, taken)) + " " + ebnf_class(plain_characters) + "* \"\\\"\"";
  if (may_end) body += " | \"\\\"\"";
  for (const auto& [first, more] : by_first) {
    const bool plain = std::any_of(plain_characters.begin(), plain_characters.end(),
                                   [c = first](const auto& range) { return c >= range.first && c <= range.second; });
    if (plain) body += " | " + ebnf_class({{first, first}}) + " " + other_rest(more, grammar);
  }
  return grammar->add(body);
}

}  // namespace

const std::string* format_regex(const std::string& format) {
  std::string_view name = format;
  for (const auto& [wide, narrow] : kWider) {
    if (name == wide) name = narrow;
  }
  const auto known = formats().find(std::string(name));
  return known == formats().end() ? nullptr : &known->second;
}

std::string string_ebnf(const Json& schema, EbnfGrammar* grammar) {
  const int64_t least = length(schema, "minLength", 0);
  int64_t most = length(schema, "maxLength", kUnbounded);
  if (least > most) throw NoValueError("minLength", "is above maxLength");
  if (most > kMostLength) most = kUnbounded;  // no answer is that long
  const auto pattern = schema.find("pattern"), format = schema.find("format");
  if (pattern != schema.end() && !pattern->is_string()) throw GrammarError("pattern", "expected a string");
  if (format != schema.end() && !format->is_string()) throw GrammarError("format", "expected a string");
  const std::string* const its_format = format == schema.end() ? nullptr : format_regex(format->get<std::string>());
  if (pattern == schema.end() && its_format == nullptr) return free_string(least, most, grammar);
  std::string key = "pattern";
  RegexGrammar regex;
  const auto by_format = [&] {
    key = "format";
    regex = regex_grammar(*its_format, TextForm::kJsonString, false);
  };
  try {
    pattern == schema.end() ? by_format()
                            : void(regex = regex_grammar(pattern->get<std::string>(), TextForm::kJsonString, true));
  } catch (const GrammarError& error) {
    // Frameworks often add the pattern with which they check the format. Our expression of the format allows less than
    // that.
    if (its_format == nullptr || pattern == schema.end()) throw GrammarError(key, error.what());
    by_format();
  }
  grammar->spend(static_cast<int64_t>(regex.ebnf.size() / 16));
  if (regex.min_length < least) {
    throw GrammarError("minLength", "is not supported beside a \"" + key + "\" that allows shorter strings");
  }
  if (regex.max_length > most && most < kFreeLength) {
    throw GrammarError("maxLength", "is not supported beside a \"" + key + "\" that allows longer strings");
  }
  return "\"\\\"\" " + regex.ebnf + " \"\\\"\"";
}

std::string other_name_ebnf(const std::vector<std::string>& names, EbnfGrammar* grammar) {
  std::vector<std::vector<uint32_t>> rests;
  for (const std::string& name : names) {
    rests.push_back(code_points(name));
    grammar->spend(static_cast<int64_t>(name.size()));
    if (rests.back().size() <= kMostNameCharacters) continue;
    throw GrammarError("", "is not supported beside a property name of more than " +
                               std::to_string(kMostNameCharacters) + " characters");
  }
  return "\"\\\"\" " + other_rest(rests, grammar);
}

std::string name_ebnf(const std::string& name) { return ebnf_literal(Json(name).dump()); }

}  // namespace smartkv

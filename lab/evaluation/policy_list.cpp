#include "lab/evaluation/policy_list.h"

#include <algorithm>
#include <charconv>
#include <cmath>

#include "cache/sequence_cache.h"

namespace smartkv {
namespace {

std::string trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return std::string(text.substr(first, text.find_last_not_of(" \t\n") - first + 1));
}

// Splits at the commas that are outside JSON objects.
std::vector<std::string> split(std::string_view text) {
  std::vector<std::string> items;
  int depth = 0;
  bool quoted = false;
  size_t start = 0;
  for (size_t i = 0; i <= text.size(); ++i) {
    if (i == text.size() || (text[i] == ',' && depth == 0)) {
      items.push_back(trimmed(text.substr(start, i - start)));
      start = i + 1;
    } else if (quoted && text[i] == '\\') {
      ++i;
    } else if (text[i] == '"' && depth > 0) {
      quoted = !quoted;
    } else if (!quoted && text[i] == '{') {
      ++depth;
    } else if (!quoted && text[i] == '}' && depth > 0) {
      --depth;
    }
  }
  return items;
}

PolicySpec parse_item(const std::string& item) {
  if (item.empty()) throw CacheError("kv_cache: expected a policy between the commas, found nothing");
  const bool object = item.starts_with('{');
  const size_t at = item.find('@', object ? item.rfind('}') : 0);
  PolicySpec spec{item, item.substr(0, at)};
  if (object) {
    spec.policy = nlohmann::json::parse(item.substr(0, at), nullptr, false);
    if (spec.policy.is_discarded()) throw CacheError("kv_cache: expected a JSON object, found " + item.substr(0, at));
  }
  if (at == std::string::npos) return spec;
  const char* end = item.data() + item.size();
  const auto [rest, error] = std::from_chars(item.data() + at + 1, end, spec.amount);
  if (at == 0 || error != std::errc() || rest != end || !(spec.amount > 0) || !std::isfinite(spec.amount)) {
    throw CacheError("kv_cache: expected NAME@X with a share of the context below 1 or bits per value, found \"" +
                     item + "\"");
  }
  const char* const key = spec.amount < 1 ? "tokens" : "bits";
  if (object && spec.policy.contains(key)) {
    throw CacheError("kv_cache: expected either \"" + std::string(key) + "\" or @X, found both in " + item);
  }
  return spec;
}

}  // namespace

nlohmann::json PolicySpec::for_context(int64_t context) const {
  if (amount == 0) return policy;
  constexpr double kRounding = 1e-6;  // so that 0.1 of 1,000 tokens is 100 and not 101
  nlohmann::json spec = policy.is_object() ? policy : nlohmann::json{{"policy", policy}};
  if (amount >= 1) {
    spec["bits"] = amount;
  } else {
    spec["tokens"] = static_cast<int64_t>(std::ceil(amount * static_cast<double>(context) - kRounding));
  }
  return spec;
}

std::vector<PolicySpec> parse_policy_list(std::string_view text, FullReference full) {
  std::vector<PolicySpec> specs = {{"full", "full"}};
  bool with_full = full == FullReference::kAlways;
  for (const std::string& item : split(text)) {
    const auto same = [&](const PolicySpec& spec) { return spec.label == item; };
    if (item != "full" && std::any_of(specs.begin(), specs.end(), same))
      throw CacheError("kv_cache: \"" + item + "\" is listed twice");
    if (item != "full") specs.push_back(parse_item(item));
    with_full = with_full || item == "full";
  }
  if (!with_full) specs.erase(specs.begin());
  return specs;
}

}  // namespace smartkv

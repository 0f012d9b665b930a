#include "lab/serving/serving_plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace smartkv {

namespace {

constexpr int64_t kMegabyte = 1'000'000;
constexpr int64_t kWarmUpTokens = 32, kWarmUpOutput = 4;  // enough to touch every weight

// Returns the start of the window of `length` with this index in a text of `total`. Multiples of the golden section,
// modulo 1, are spread evenly for any number of them, and no two of n are closer than 1 / (3 n).
int64_t window_start(int64_t index, int64_t length, int64_t total, const char* unit) {
  constexpr double kGoldenSection = 0.6180339887498949;
  const int64_t range = total - length;
  if (range < 3 * (index + 1)) {
    throw std::invalid_argument("the text is too short: expected " + std::to_string(length + 3 * (index + 1)) + " " +
                                unit + " or more, found " + std::to_string(total));
  }
  const double turns = static_cast<double>(index + 1) * kGoldenSection;
  return static_cast<int64_t>((turns - std::floor(turns)) * static_cast<double>(range));
}

}  // namespace

const std::vector<ServingCase>& serving_cases() {
  static const std::vector<ServingCase> table = {
      {.name = "a",
       .what = "200 + 1,000 tokens",
       .requests = 64,
       .prompt_tokens = 200,
       .output_tokens = 1000,
       .kv_cache_bytes = 96 * kMegabyte},
      {.name = "b",
       .what = "2,000 + 200 tokens",
       .requests = 64,
       .prompt_tokens = 2000,
       .output_tokens = 200,
       .kv_cache_bytes = 96 * kMegabyte},
      {.name = "c",
       .what = "50 + 200 tokens about one of 4 texts of 2,000",
       .requests = 64,
       .prompt_tokens = 2050,
       .output_tokens = 200,
       .shared_texts = 4,
       .shared_tokens = 2000,
       .kv_cache_bytes = 96 * kMegabyte},
      {.name = "d",
       .what = "100 words + 64 tokens",
       .requests = 16,
       .prompt_words = 100,
       .output_tokens = 64,
       .kv_cache_bytes = 96 * kMegabyte},
      {.name = "e",
       .what = "200 + 600 tokens",
       .requests = 24,
       .prompt_tokens = 200,
       .output_tokens = 600,
       .kv_cache_bytes = 72 * kMegabyte},
      {.name = "f",
       .what = "1,700 + 48 tokens",
       .requests = 24,
       .prompt_tokens = 1700,
       .output_tokens = 48,
       .kv_cache_bytes = 72 * kMegabyte},
      {.name = "g",
       .what = "50 + 1 tokens behind a prompt of 8,000",
       .requests = 3,
       .prompt_tokens = 50,
       .output_tokens = 1,
       .ahead_tokens = 8000},
  };
  return table;
}

std::vector<ServingCase> parse_serving_cases(std::string_view names) {
  std::vector<ServingCase> chosen;
  for (size_t start = 0; start <= names.size();) {
    const size_t end = std::min(names.find(',', start), names.size());
    const std::string_view name = names.substr(start, end - start);
    const auto& table = serving_cases();
    const auto found = std::ranges::find(table, name, &ServingCase::name);
    if (found == table.end()) {
      throw std::invalid_argument("expected cases from a to g, found \"" + std::string(name) + "\"");
    }
    chosen.push_back(*found);
    start = end + 1;
  }
  return chosen;
}

PromptSource::PromptSource(std::string text, const Tokenizer& tokenizer)
    : text_(std::move(text)), tokenizer_(tokenizer), tokens_(tokenizer.encode(text_, {.add_special = false})) {
  constexpr std::string_view kSpace = " \t\r\n";
  const std::string_view all = text_;
  for (size_t start = all.find_first_not_of(kSpace); start != all.npos;) {
    const size_t end = std::min(all.find_first_of(kSpace, start), all.size());
    words_.push_back(all.substr(start, end - start));
    start = all.find_first_not_of(kSpace, end);
  }
}

std::vector<TokenId> PromptSource::tokens(int64_t n, int64_t index) const {
  const auto first = tokens_.begin() + window_start(index, n, static_cast<int64_t>(tokens_.size()), "tokens");
  return {first, first + n};
}

std::vector<TokenId> PromptSource::words(int64_t n, int64_t index) const {
  const auto first = static_cast<size_t>(window_start(index, n, static_cast<int64_t>(words_.size()), "words"));
  const std::string_view last = words_[first + static_cast<size_t>(n) - 1];
  const std::string_view passage(words_[first].data(), static_cast<size_t>(last.end() - words_[first].begin()));
  return tokenizer_.encode(passage, {.add_special = false});
}

std::vector<ServingRequest> PromptSource::requests(const ServingCase& one, int repetition) const {
  std::vector<ServingRequest> requests;
  for (int64_t i = 0; i < one.requests; ++i) {
    const int64_t index = repetition * one.requests + i;
    ServingRequest request{.prompt = {}, .output_tokens = one.output_tokens};
    if (one.shared_texts > 0) {
      request.prompt = tokens(one.shared_tokens, repetition * one.shared_texts + i % one.shared_texts);
    }
    const std::vector<TokenId> own =
        one.prompt_words > 0 ? words(one.prompt_words, index) : tokens(one.prompt_tokens - one.shared_tokens, index);
    request.prompt.insert(request.prompt.end(), own.begin(), own.end());
    requests.push_back(std::move(request));
  }
  return requests;
}

std::vector<ServingRequest> PromptSource::ahead(const ServingCase& one, int repetition) const {
  std::vector<ServingRequest> requests;
  for (int64_t i = 0; i < one.requests; ++i) {
    requests.push_back({tokens(one.ahead_tokens, repetition * one.requests + i), one.output_tokens});
  }
  return requests;
}

int64_t PromptSource::longest(const ServingCase& one, int repetitions) const {
  int64_t most = one.fairness() ? one.ahead_tokens + one.output_tokens : 0;
  for (int repetition = 0; repetition < repetitions; ++repetition) {
    for (const ServingRequest& request : requests(one, repetition)) {
      most = std::max(most, static_cast<int64_t>(request.prompt.size()) + request.output_tokens);
    }
  }
  return most;
}

ServingRequest PromptSource::warm_up() const {
  const auto n = std::min<int64_t>(kWarmUpTokens, static_cast<int64_t>(tokens_.size()));
  return {{tokens_.end() - n, tokens_.end()}, kWarmUpOutput};
}

}  // namespace smartkv

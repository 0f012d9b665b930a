#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "engine/evaluation/recall.h"
#include "engine/text/sentence_end.h"

namespace smartkv {
namespace {

constexpr std::array<const char*, 24> kNames = {
    "Alice", "Brian",  "Carol", "Daniel", "Emma",  "Frank",  "Grace", "Henry",  "Irene",  "Jacob",  "Karen", "Lewis",
    "Maria", "Nathan", "Olga",  "Peter",  "Quinn", "Robert", "Sarah", "Thomas", "Ursula", "Victor", "Wendy", "Xavier"};

}  // namespace

RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::span<const TokenId> text, const RecallOptions& options,
                                int64_t length, int64_t index, int64_t count) {
  struct Insertion {
    int64_t position;
    std::vector<TokenId> tokens;
  };
  RecallPrompt prompt;
  std::vector<Insertion> insertions;
  std::mt19937_64 random(static_cast<uint64_t>(length) << 20 | static_cast<uint64_t>(index));
  int64_t haystack = length;
  for (int64_t i = 0; i < kNeedles; ++i) {
    const int64_t serial = index * kNeedles + i;
    const std::string name = kNames[static_cast<size_t>(serial) % kNames.size()];
    RecallPrompt::Needle& needle = prompt.needles.emplace_back();
    needle.depth = serial % static_cast<int64_t>(options.depths.size());
    needle.number = std::to_string(10000 + random() % 90000);
    needle.question = "\n\nSecret number of " + name + ":";
    insertions.push_back(
        {0, tokenizer.encode("\n\nSecret number of " + name + ": " + needle.number + "\n\n", {false, false})});
    haystack -= static_cast<int64_t>(insertions.back().tokens.size());
  }
  if (haystack <= 0 || length > static_cast<int64_t>(text.size())) {
    throw EvaluationError("recall: expected a length that holds the hidden lines and at most " +
                          std::to_string(text.size()) + " tokens, those of the text, found " + std::to_string(length));
  }
  const int64_t start = index * (static_cast<int64_t>(text.size()) - length) / count;  // spread over the text
  text = text.subspan(static_cast<size_t>(start), static_cast<size_t>(haystack));
  for (size_t i = 0; i < insertions.size(); ++i) {
    const double depth = options.depths[static_cast<size_t>(prompt.needles[i].depth)];
    insertions[i].position = sentence_end(tokenizer, text, static_cast<int64_t>(depth * static_cast<double>(haystack)));
  }
  std::stable_sort(insertions.begin(), insertions.end(),
                   [](const Insertion& a, const Insertion& b) { return a.position < b.position; });
  int64_t done = 0;
  for (const Insertion& insertion : insertions) {
    prompt.context.insert(prompt.context.end(), text.begin() + done, text.begin() + insertion.position);
    prompt.context.insert(prompt.context.end(), insertion.tokens.begin(), insertion.tokens.end());
    done = insertion.position;
  }
  prompt.context.insert(prompt.context.end(), text.begin() + done, text.end());
  return prompt;
}

}  // namespace smartkv

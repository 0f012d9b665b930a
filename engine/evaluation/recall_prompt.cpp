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

struct Wording {
  const char *name, *told, *asked;  // "@" is the person, "#" the number
};
constexpr Wording kWordings[] = {
    {"number", "\n\nSecret number of @: #\n\n", "\n\nSecret number of @:"},
    {"locker", "\n\n@ opens the locker with # and no other number.\n\n", "\n\n@ opens the locker with"},
    {"dialogue", "\n\n\"And your membership, @?\" asked the clerk. \"It is #,\" said @.\n\n",
     "\n\n\"And your membership, @?\" asked the clerk once more. \"It is"},
};

const Wording& wording_of(const std::string& name) {
  for (const Wording& wording : kWordings) {
    if (wording.name == name) return wording;
  }
  std::string known;
  for (const std::string& other : recall_wordings()) known += (known.empty() ? "" : ", ") + other;
  throw EvaluationError("recall: expected a wording of " + known + ", found \"" + name + "\"");
}

std::string filled(const char* wording, const std::string& person, const std::string& number) {
  std::string text;
  for (; *wording != '\0'; ++wording) {
    if (*wording == '@') {
      text += person;
    } else if (*wording == '#') {
      text += number;
    } else {
      text += *wording;
    }
  }
  return text;
}

}  // namespace

std::vector<std::string> recall_wordings() {
  std::vector<std::string> names;
  for (const Wording& wording : kWordings) names.emplace_back(wording.name);
  return names;
}

RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::span<const TokenId> text, const RecallOptions& options,
                                int64_t length, int64_t index, int64_t count) {
  struct Insertion {
    int64_t position;
    std::vector<TokenId> tokens;
  };
  RecallPrompt prompt;
  std::vector<Insertion> insertions;
  std::mt19937_64 random(static_cast<uint64_t>(length) << 20 | static_cast<uint64_t>(index));
  const Wording& wording = wording_of(options.wording);
  int64_t haystack = length;
  for (int64_t i = 0; i < kNeedles; ++i) {
    const int64_t serial = index * kNeedles + i;
    const std::string name = kNames[static_cast<size_t>(serial) % kNames.size()];
    RecallPrompt::Needle& needle = prompt.needles.emplace_back();
    needle.depth = serial % static_cast<int64_t>(options.depths.size());
    needle.number = std::to_string(10000 + random() % 90000);
    needle.question = filled(wording.asked, name, "");
    insertions.push_back({0, tokenizer.encode(filled(wording.told, name, needle.number), {false, false})});
    haystack -= static_cast<int64_t>(insertions.back().tokens.size());
  }
  const auto most = static_cast<int64_t>(text.size()) - options.again;
  if (haystack <= 0 || length > most) {
    throw EvaluationError("recall: expected a length that holds the hidden lines and at most " + std::to_string(most) +
                          " tokens, those of the text, found " + std::to_string(length));
  }
  const int64_t start = index * (most - length) / count;  // spread over the text
  const auto after = text.begin() + start + haystack;
  prompt.after.assign(after, after + options.again);
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

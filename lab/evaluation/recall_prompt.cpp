#include <algorithm>
#include <array>
#include <random>
#include <string>

#include "engine/text/sentence_end.h"
#include "lab/evaluation/recall.h"

namespace smartkv {
namespace {

constexpr std::array<const char*, 24> kNames = {
    "Alice", "Brian",  "Carol", "Daniel", "Emma",  "Frank",  "Grace", "Henry",  "Irene",  "Jacob",  "Karen", "Lewis",
    "Maria", "Nathan", "Olga",  "Peter",  "Quinn", "Robert", "Sarah", "Thomas", "Ursula", "Victor", "Wendy", "Xavier"};

struct Wording {
  const char *name, *told, *asked, *asked_several;  // "@" stands for the person or persons, "#" for the number
};
constexpr Wording kWordings[] = {
    {"number", "\n\nSecret number of @: #\n\n", "\n\nSecret number of @:", "\n\nSecret numbers of @:"},
    {"locker", "\n\n@ opens the locker with # and no other number.\n\n", "\n\n@ opens the locker with",
     "\n\n@ open the locker, in this order, with"},
    {"dialogue", "\n\n\"And your membership, @?\" asked the clerk. \"It is #,\" said @.\n\n",
     "\n\n\"And your membership, @?\" asked the clerk once more. \"It is",
     "\n\n\"And your memberships, @?\" asked the clerk once more. \"They are"},
};

const Wording& wording_of(const std::string& name) {
  for (const Wording& wording : kWordings) {
    if (wording.name == name) return wording;
  }
  std::string known;
  for (const std::string& other : recall_wordings()) known += (known.empty() ? "" : ", ") + other;
  throw EvaluationError("recall: expected one of the wordings " + known + ", found \"" + name + "\"");
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

constexpr std::array<const char*, 48> kListed = {
    "apple",  "river",  "stone",   "cloud",  "tiger",  "candle", "window", "garden", "silver", "hammer",
    "pocket", "bridge", "forest",  "mirror", "button", "castle", "dragon", "ladder", "needle", "orange",
    "pencil", "rabbit", "saddle",  "ticket", "velvet", "wagon",  "yellow", "anchor", "basket", "copper",
    "desert", "engine", "feather", "ginger", "harbor", "island", "jacket", "kitten", "lemon",  "marble",
    "napkin", "otter",  "pepper",  "quartz", "ribbon", "salmon", "turtle", "violin"};
constexpr int64_t kCommon = 3;

using Random = std::mt19937_64;

// A text to insert after the first sentence that ends beyond `depth`, a share of the context.
struct Insertion {
  double depth;
  std::string text;
};

// Fills in prompt->context with `length` tokens: `lead`, then a part of `text` with the insertions in order of depth.
// Each `index` uses a different part of the text. Also fills in prompt->after.
void hide(const Tokenizer& tokenizer, std::span<const TokenId> text, const RecallOptions& options, int64_t length,
          int64_t index, int64_t count, const std::string& lead, const std::vector<Insertion>& insertions,
          RecallPrompt* prompt) {
  struct Placed {
    int64_t position;
    std::vector<TokenId> tokens;
  };
  std::vector<Placed> placed;
  prompt->context = tokenizer.encode(lead, {false, false});
  int64_t haystack = length - static_cast<int64_t>(prompt->context.size());
  for (const Insertion& insertion : insertions) {
    placed.push_back({0, tokenizer.encode(insertion.text, {false, false})});
    haystack -= static_cast<int64_t>(placed.back().tokens.size());
  }
  const auto most = static_cast<int64_t>(text.size()) - options.again;
  if (haystack <= 0 || length > most) {
    throw EvaluationError("recall: expected a length that fits the hidden lines, and at most the text's " +
                          std::to_string(most) + " tokens, found " + std::to_string(length));
  }
  const int64_t start = index * (most - length) / count;  // spread over the text
  const auto after = text.begin() + start + haystack;
  prompt->after.assign(after, after + options.again);
  text = text.subspan(static_cast<size_t>(start), static_cast<size_t>(haystack));
  for (size_t i = 0; i < placed.size(); ++i) {
    placed[i].position =
        sentence_end(tokenizer, text, static_cast<int64_t>(insertions[i].depth * static_cast<double>(haystack)));
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.position < b.position; });
  int64_t done = 0;
  for (const Placed& insertion : placed) {
    prompt->context.insert(prompt->context.end(), text.begin() + done, text.begin() + insertion.position);
    prompt->context.insert(prompt->context.end(), insertion.tokens.begin(), insertion.tokens.end());
    done = insertion.position;
  }
  prompt->context.insert(prompt->context.end(), text.begin() + done, text.end());
}

std::string five_digits(Random& random) { return std::to_string(10000 + random() % 90000); }

// Returns the names as "A, B and C".
std::string enumerated(const std::vector<std::string>& names) {
  std::string text;
  for (size_t i = 0; i < names.size(); ++i) text += (i == 0 ? "" : i + 1 < names.size() ? ", " : " and ") + names[i];
  return text;
}

// Adds the questions of the task "facts" and returns the insertions. Question i asks for fact i, or for several facts
// beginning with fact i, in cyclic order.
std::vector<Insertion> facts(const RecallOptions& options, int64_t index, Random& random, RecallPrompt* prompt) {
  // Tokens per number of an answer: a space, five digits of one token each, and a separator.
  constexpr int64_t kAnswerTokens = 8;
  if (options.facts_asked < 1 || options.facts_asked > kNeedles) {
    throw EvaluationError("recall: expected 1 to " + std::to_string(kNeedles) + " facts per question, found " +
                          std::to_string(options.facts_asked));
  }
  const Wording& wording = wording_of(options.wording);
  std::vector<Insertion> insertions;
  std::vector<std::string> persons, numbers;
  std::vector<int64_t> depths;
  for (int64_t i = 0; i < kNeedles; ++i) {
    const int64_t serial = index * kNeedles + i;
    persons.emplace_back(kNames[static_cast<size_t>(serial) % kNames.size()]);
    numbers.push_back(five_digits(random));
    depths.push_back(serial % static_cast<int64_t>(options.depths.size()));
    insertions.push_back(
        {options.depths[static_cast<size_t>(depths.back())], filled(wording.told, persons.back(), numbers.back())});
  }
  const bool one = options.facts_asked == 1;
  for (size_t i = 0; i < persons.size(); ++i) {
    std::vector<std::string> asked, answers;
    for (size_t j = i; j < i + static_cast<size_t>(options.facts_asked); ++j) {
      asked.push_back(persons[j % persons.size()]);
      answers.push_back(numbers[j % numbers.size()]);
    }
    prompt->questions.push_back({one ? depths[i] : -1, answers,
                                 filled(one ? wording.asked : wording.asked_several, enumerated(asked), ""),
                                 kAnswerTokens * options.facts_asked});
  }
  return insertions;
}

struct Chain {
  std::string value;
  std::vector<std::string> names;  // two variables: the first is assigned the value, the second is assigned the first

  explicit Chain(Random& random) : value(five_digits(random)), names(2) {
    for (std::string& name : names) {
      for (int i = 0; i < 5; ++i) name += static_cast<char>('A' + random() % 26);
    }
  }
  std::string told(size_t i) const {
    return "\n\nVAR " + names[i] + " = " + (i == 0 ? value : "VAR " + names[0]) + "\n\n";
  }
  std::string asked() const {
    return "\n\nQuestion: Which variables have the value " + value +
           " in the text above? Answer: " + "By the assignments in the text above, two variables have the value " +
           value + ". They are:";
  }
};

std::vector<Insertion> variables(Random& random, std::string* lead, RecallPrompt* prompt) {
  constexpr int64_t kAnswerTokens = 24;
  const Chain example(random), other(random);
  *lead = "Keep track of the variables that are assigned in the text.\n\nIt rained all day." + example.told(0) +
          "Nobody came." + other.told(0) + "The lamp was lit." + example.told(1) + "Then it was night." +
          other.told(1) + example.asked() + " " + example.names[0] + ", " + example.names[1] +
          "\n\nKeep track of the variables that are assigned in the text.\n\n";
  std::vector<Insertion> insertions;
  std::uniform_real_distribution<double> anywhere(0.0, 0.95);
  for (int64_t i = 0; i < questions_of("variables"); ++i) {
    const Chain chain(random);
    double first = anywhere(random), second = anywhere(random);
    if (second < first) std::swap(first, second);
    insertions.push_back({first, chain.told(0)});
    insertions.push_back({second, chain.told(1)});
    prompt->questions.push_back({-1, chain.names, chain.asked(), kAnswerTokens});
  }
  return insertions;
}

// Returns n lists of words. Half of all words are the first kCommon of `words` in turn; the other half are random other
// ones.
std::vector<std::string> word_lists(int64_t n, const std::vector<std::string>& words, Random& random) {
  constexpr int64_t kWordsOfList = 6;
  std::vector<std::string> lists, drawn;
  for (int64_t i = 0; i < n * kWordsOfList; ++i) {
    const size_t others = kCommon + random() % (words.size() - kCommon);
    drawn.push_back(words[i % 2 == 0 ? static_cast<size_t>(i / 2 % kCommon) : others]);
  }
  for (size_t left = drawn.size(); left > 1; --left) std::swap(drawn[random() % left], drawn[left - 1]);
  for (int64_t i = 0; i < n; ++i) {
    std::string list = "\n\nWords:";
    for (int64_t j = 0; j < kWordsOfList; ++j)
      list += (j == 0 ? " " : ", ") + drawn[static_cast<size_t>(i * kWordsOfList + j)];
    lists.push_back(list + ".\n\n");
  }
  return lists;
}

std::vector<Insertion> words(int64_t length, Random& random, std::string* lead, RecallPrompt* prompt) {
  constexpr int64_t kAnswerTokens = 24, kTokensPerList = 128;
  const std::string asked =
      "\n\nQuestion: Which three words stand most often in the lists of words above? Answer: The three words are:";
  const auto shuffled = [&] {
    std::vector<std::string> all(kListed.begin(), kListed.end());
    for (size_t left = all.size(); left > 1; --left) std::swap(all[random() % left], all[left - 1]);
    return all;
  };
  const std::string task = "Some words stand more often than others in the lists of words in the text.\n\n";
  const std::vector<std::string> example = shuffled(), own = shuffled();
  *lead = task;
  for (const std::string& list : word_lists(4, example, random)) *lead += "It rained all day." + list;
  *lead += asked + " " + example[0] + ", " + example[1] + ", " + example[2] + "\n\n" + task;
  std::vector<Insertion> insertions;
  const int64_t n = std::max<int64_t>(4, length / kTokensPerList);
  const std::vector<std::string> lists = word_lists(n, own, random);
  for (int64_t i = 0; i < n; ++i) {
    insertions.push_back({0.95 * static_cast<double>(i) / static_cast<double>(n), lists[static_cast<size_t>(i)]});
  }
  prompt->questions.push_back({-1, {own.begin(), own.begin() + kCommon}, asked, kAnswerTokens});
  return insertions;
}

}  // namespace

std::vector<std::string> recall_tasks() { return {"facts", "variables", "words", "agent"}; }

int64_t questions_of(const std::string& task) {
  return task == "facts" || task == "agent" ? kNeedles : task == "variables" ? 2 : 1;
}

std::vector<std::string> recall_wordings() {
  std::vector<std::string> names;
  for (const Wording& wording : kWordings) names.emplace_back(wording.name);
  return names;
}

RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::span<const TokenId> text, const RecallOptions& options,
                                int64_t length, int64_t index, int64_t count) {
  Random random(static_cast<uint64_t>(length) << 20 | static_cast<uint64_t>(index));
  RecallPrompt prompt;
  if (options.task == "agent") {
    make_agent_prompt(tokenizer, options, length, index, &prompt);
    return prompt;
  }
  std::string lead;
  std::vector<Insertion> insertions;
  if (options.task == "facts") {
    insertions = facts(options, index, random, &prompt);
  } else if (options.task == "variables") {
    insertions = variables(random, &lead, &prompt);
  } else if (options.task == "words") {
    insertions = words(length, random, &lead, &prompt);
  } else {
    throw EvaluationError("recall: expected the task facts, variables, words or agent, found \"" + options.task + "\"");
  }
  hide(tokenizer, text, options, length, index, count, lead, insertions, &prompt);
  return prompt;
}

}  // namespace smartkv

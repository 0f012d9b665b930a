#include "engine/torch/hidden_facts.h"

#include <algorithm>
#include <array>
#include <random>
#include <stdexcept>
#include <string>

#include "engine/text/sentence_end.h"

namespace smartkv {
namespace {

struct Wording {
  const char *statement, *question;  // "@" is the subject, "#" the answer, which ends the question
  bool person;                       // what the subject is
};

constexpr std::array<Wording, 16> kWordings = {{
    {"\n\nThe code of @ is #.\n\n", "\n\nWhat is the code of @? The code of @ is #", false},
    {"\n\nRemember this: the key to @ is #.\n\n", "\n\nThe key to @ is #", false},
    {"\n\nPhone of @: #\n\n", "\n\nPhone of @: #", true},
    {" The price of @ was $#. ", "\n\nQ: What was the price of @?\nA: $#", false},
    {"\n\n@, account no. #\n\n", "\n\n@, account no. #", true},
    {" (The password for @ is \"#\".) ", "\n\nThe password for @ is \"#", false},
    {"\n\nIdentifier of @ = #\n\n", "\n\nIdentifier of @ = #", false},
    {" @ lives in house number #. ", "\n\nQuestion: In which house does @ live?\nAnswer: house number #", true},
    {"\n\nNote: @ has the number #.\n\n", "\n\nWhich number does @ have? @ has the number #", false},
    {"\n\n- @: #\n\n", "\n\n- @: #", true},
    {" It is written that @ weighs # pounds. ", "\n\nHow much does @ weigh? It is written that @ weighs #", false},
    {"\n\nTicket of @ -> #\n\n", "\n\nTicket of @ -> #", true},
    {"\n\nThe magic word of @ is #.\n\n", "\n\nTell me the magic word of @. The magic word of @ is #", true},
    {"\n\n\"@\": \"#\",\n\n", "\n\n\"@\": \"#", false},
    {" The year of @ is #. ", "\n\nThe year of @ is #", false},
    {"\n\n@ | #\n\n", "\n\n@ | #", true},
}};

constexpr std::array<const char*, 24> kPeople = {
    "Mr. Ashby",  "Mrs. Colton",   "Dr. Farrow",  "Miss Langley", "Captain Reed", "Aunt Petunia", "old Hobson",  "Bianca",
    "Leopold",    "Madame Duval",  "Judge Orrin", "Ivan",         "Sister Agnes", "Tobias",       "Lady Winter", "Kenji",
    "Mr. Okafor", "Professor Lin", "Esteban",     "Nurse Hale",   "Gunther",      "Priya",        "Uncle Silas", "Mirabel"};
constexpr std::array<const char*, 12> kQualities = {"red",   "northern", "broken",  "silver", "second", "hidden",
                                                    "green", "empty",    "ancient", "small",  "royal",  "wooden"};
constexpr std::array<const char*, 16> kThings = {"gate",   "engine", "ledger",  "harbour", "tower",  "parcel",
                                                 "garden", "bridge", "cabinet", "wagon",   "lantern", "archive",
                                                 "mill",   "statue", "railway", "chest"};
constexpr std::array<const char*, 16> kWords = {"walnut", "compass", "violet", "granite", "heron",  "copper",
                                                "saffron", "thimble", "maple",  "anchor",  "pepper", "velvet",
                                                "otter",  "quartz",  "juniper", "marble"};

class FactWriter {
 public:
  explicit FactWriter(uint64_t seed) : random_(seed) {}

  // Subjects of one window differ: `serial` counts its facts.
  void write(int64_t serial, std::string* statement, std::string* question) {
    const Wording& wording = pick(kWordings);
    const auto turn = first_ + static_cast<size_t>(serial);
    const std::string subject = wording.person ? kPeople[turn % kPeople.size()]
                                               : std::string("the ") + kQualities[turn % kQualities.size()] + " " +
                                                     kThings[(turn * 5 + 3) % kThings.size()];
    const std::string answer = random_() % 6 == 0 ? pick(kWords) : number();
    *statement = fill(wording.statement, subject, answer);
    *question = fill(wording.question, subject, answer);
  }

  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  template <typename T, size_t n>
  const T& pick(const std::array<T, n>& from) {
    return from[random_() % n];
  }

  std::string number() {
    const uint64_t digits = 3 + random_() % 5;
    std::string number(1, static_cast<char>('1' + random_() % 9));
    while (number.size() < digits) number += static_cast<char>('0' + random_() % 10);
    return number;
  }

  static std::string fill(const char* wording, const std::string& subject, const std::string& answer) {
    std::string text;
    for (; *wording != '\0'; ++wording) {
      if (*wording == '@') {
        text += subject;
      } else if (*wording == '#') {
        text += answer;
      } else {
        text += *wording;
      }
    }
    return text;
  }

  std::mt19937_64 random_;
  size_t first_ = random_() % 997;
};

}  // namespace

std::vector<int64_t> hide_facts(const Tokenizer& tokenizer, const std::vector<int64_t>& window, int64_t count,
                                uint64_t seed) {
  struct Fact {
    size_t position;  // in the window
    std::vector<TokenId> statement, question;
  };
  FactWriter writer(seed);
  std::vector<Fact> facts(static_cast<size_t>(count));
  size_t told = 0, asked = 0;
  for (size_t i = 0; i < facts.size(); ++i) {
    std::string statement, question;
    writer.write(static_cast<int64_t>(i), &statement, &question);
    facts[i] = {0, tokenizer.encode(statement, {false, false}), tokenizer.encode(question, {false, false})};
    told += facts[i].statement.size();
    asked += facts[i].question.size();
  }
  const size_t half = window.size() / 2;
  if (told > half / 2 || asked > half / 2) {
    throw std::invalid_argument("facts: expected few enough that their " + std::to_string(told + asked) +
                                " tokens fit in a window of " + std::to_string(window.size()) + ", found " +
                                std::to_string(count));
  }
  for (Fact& fact : facts) {
    const auto position = static_cast<int64_t>(writer.below(half - told - 64));
    fact.position = static_cast<size_t>(sentence_end<int64_t>(tokenizer, window, position));
  }
  std::stable_sort(facts.begin(), facts.end(), [](const Fact& a, const Fact& b) { return a.position < b.position; });

  std::vector<int64_t> text;
  size_t done = 0;
  for (const Fact& fact : facts) {
    text.insert(text.end(), window.begin() + static_cast<std::ptrdiff_t>(done),
                window.begin() + static_cast<std::ptrdiff_t>(fact.position));
    text.insert(text.end(), fact.statement.begin(), fact.statement.end());
    done = fact.position;
  }
  const size_t end = window.size() - told - asked;  // of the window's own tokens
  text.insert(text.end(), window.begin() + static_cast<std::ptrdiff_t>(done),
              window.begin() + static_cast<std::ptrdiff_t>(end));
  for (size_t left = facts.size(); left > 0; --left) {
    std::swap(facts[writer.below(left)], facts[left - 1]);
    const std::vector<TokenId>& question = facts[left - 1].question;
    text.insert(text.end(), question.begin(), question.end());
  }
  return text;
}

}  // namespace smartkv

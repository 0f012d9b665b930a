#include "lab/training/hidden_facts.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <random>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/text/sentence_end.h"

namespace smartkv {
namespace {

// The wording of a fact. Marks in curly brackets are replaced by random values, the same throughout a fact: {person},
// {other} (another person), {thing}, {place}, {number}, {second} (a number), {word}, {next}, {last} (words), {code},
// {symbol}, {copy} (a symbol), and {answer}, which is a number, a word or a code.
struct Frame {
  const char *told, *later;  // later: a second statement that needs the first, elsewhere in the text; empty if none
  const char* asked;         // the question, ending with the answer
};

constexpr Frame kFrames[] = {
    // Separate lines.
    {"\n\nThe code of {thing} is {answer}.\n\n", "",
     "\n\nWhat is the code of {thing}? The code of {thing} is {answer}"},
    {"\n\nRemember this: the key to {thing} is {answer}.\n\n", "", "\n\nThe key to {thing} is {answer}"},
    {"\n\nPhone of {person}: {number}\n\n", "", "\n\nPhone of {person}: {number}"},
    {"\n\n{person}, account no. {answer}\n\n", "", "\n\n{person}, account no. {answer}"},
    {"\n\nIdentifier of {thing} = {answer}\n\n", "", "\n\nIdentifier of {thing} = {answer}"},
    {"\n\nNote: {thing} has the number {number}.\n\n", "",
     "\n\nWhich number does {thing} have? {thing} has the number {number}"},
    {"\n\nVoucher of {person} -> {answer}\n\n", "", "\n\nVoucher of {person} -> {answer}"},
    {"\n\nThe magic word of {person} is {word}.\n\n", "",
     "\n\nTell me the magic word of {person}. The magic word of {person} is {word}"},
    {"\n\nTelegram for {person}: reply to {code} at once.\n\n", "", "\n\nTelegram for {person}: reply to {code}"},
    {"\n\nNotice. {thing} opens again on day {number}.\n\n", "",
     "\n\nOn which day does {thing} open again? Notice. {thing} opens again on day {number}"},
    // Sentences within prose.
    {" The price of {thing} was ${number}. ", "", "\n\nQ: What was the price of {thing}?\nA: ${number}"},
    {" (The password for {thing} is \"{answer}\".) ", "", "\n\nThe password for {thing} is \"{answer}"},
    {" {person} lives in house number {number}. ", "",
     "\n\nIn which house does {person} live? In house number {number}"},
    {" It is written that {thing} weighs {number} pounds. ", "",
     "\n\nHow much does {thing} weigh? It is written that {thing} weighs {number}"},
    {" The year of {thing} is {number}. ", "", "\n\nThe year of {thing} is {number}"},
    {" In the drawer of {person} lay a card with {answer} written on it. ", "",
     "\n\nThe card in the drawer of {person} had {answer}"},
    {" They had buried {number} coins under {thing}, and nobody knew but {person}. ", "",
     "\n\n{person} knew: under {thing} they had buried {number}"},
    {" {person}, who was born in {place} in {number}, never spoke of it. ", "",
     "\n\n{person} was born in {place} in {number}"},
    {" On the lid of {thing} somebody had scratched {code}. ", "", "\n\nScratched on the lid of {thing}: {code}"},
    {" Few remembered that {other} had painted {thing}. ", "",
     "\n\nWho had painted {thing}? Few remembered that {other}"},
    {" Regiment {number} was commanded by {person}. ", "",
     "\n\nThe regiment commanded by {person} was Regiment {number}"},
    {" From {place} one walks {number} miles to {thing}, and no inn on the way. ", "",
     "\n\nTo {thing} one walks, from {place}, {number}"},
    {" {person} married {other} in {place}. ", "", "\n\nWhom did {person} marry? {person} married {other}"},
    {" When {thing} was sold, {person} received {number} pounds and a {word}. ", "",
     "\n\nFor {thing}, {person} received {number} pounds and a {word}"},
    {" All night {person} dreamt of a {word} and of nothing else. ", "",
     "\n\nOf what did {person} dream all night? Of a {word}"},
    {" The horse that {person} rode was called {word}. ", "", "\n\nThe horse of {person} was called {word}"},
    // Direct speech.
    {"\n\n\"Send the crate to pier {number},\" {person} told the boy.\n\n", "",
     "\n\n\"Which pier?\" the boy repeated. {person} had told him: \"Send the crate to pier {number}"},
    {"\n\n{person} leaned over the counter. \"My berth is {number}, on the upper deck.\"\n\n", "",
     "\n\nThe purser looked at {person}. \"My berth is {number}"},
    {"\n\n\"Who goes there?\" cried the guard. \"{person},\" came the voice, \"and the countersign is {word}.\"\n\n",
     "", "\n\nAgain the guard stopped {person}. \"The countersign is {word}"},
    {"\n\n{person} whispered: \"Count the steps. There are {number} of them.\"\n\n", "",
     "\n\nHow many steps? {person} whispered: \"There are {number}"},
    {"\n\n\"I paid {number} crowns for {thing},\" {person} confessed.\n\n", "",
     "\n\nWhat had {person} confessed? \"I paid {number}"},
    {"\n\n\"Well, {person}, how old is {thing}?\"\n\"Built in {number}, sir.\"\n\n", "",
     "\n\n\"Once more, {person}, how old is {thing}?\"\n\"Built in {number}"},
    {"\n\n{person}: Gate {number}. Don't be late.\n{other}: I won't.\n\n", "",
     "\n\n{other}: Where do we meet?\n{person}: Gate {number}"},
    {"\n\n\"Operator? Give me {number},\" {person} shouted into the telephone.\n\n", "",
     "\n\n{person} took up the telephone again. \"Operator? Give me {number}"},
    {"\n\n\"They call me {word},\" {person} replied, \"though nobody knows why.\"\n\n", "",
     "\n\n\"And what do they call you?\" {person} sighed. \"They call me {word}"},
    {"\n\n\"We sail at {number} hours,\" {person} answered, \"with or without you.\"\n\n", "",
     "\n\n\"When do we sail?\" {person} lost patience. \"We sail at {number}"},
    {"\n\n\"Ask for {other} in {place},\" muttered {person}. \"Tell nobody.\"\n\n", "",
     "\n\nWhom should one ask for? {person} had muttered: \"Ask for {other}"},
    {"\n\n\"Let us look: {answer}. Yes, that stands in the file of {person},\" the doctor nodded.\n\n", "",
     "\n\nThe doctor opened the file of {person}. \"Let us look: {answer}"},
    // Lists, tables, forms.
    {"\n\n- {person}: {answer}\n\n", "", "\n\n- {person}: {answer}"},
    {"\n\n\"{thing}\": \"{answer}\",\n\n", "", "\n\n\"{thing}\": \"{answer}"},
    {"\n\n{person} | {answer}\n\n", "", "\n\n{person} | {answer}"},
    {"\n\nOn board {thing}: {word}, {next} and {last}.\n\n", "", "\n\nOn board {thing}: {word}, {next} and {last}"},
    {"\n\n1. {person}, {number} points\n2. {other}, {second} points\n\n", "",
     "\n\nSecond was {other} with {second} points, first {person} with {number}"},
    {"\n\n{person};{place};{answer}\n\n", "", "\n\n{person};{place};{answer}"},
    {"\n\n| {thing} | {code} | {number} |\n\n", "", "\n\n| {thing} | {code} | {number}"},
    {"\n\nName: {person}\nBorn: {place}\nPass: {answer}\n\n", "", "\n\nPass of {person}, born in {place}: {answer}"},
    {"\n\nTake {number} grams of {word} and {second} of {next}.\n\n", "",
     "\n\nHow much {next}? {second} grams. How much {word}? {number}"},
    {"\n\n* {word}: {number}\n* {next}: {second}\n\n", "", "\n\n* {next}: {second}\n* {word}: {number}"},
    {"\n\nOwed by {person}\t{number}\nOwed by {other}\t{second}\n\n", "",
     "\n\nOwed by {other}\t{second}\nOwed by {person}\t{number}"},
    {"\n\nRoute {number}: {place}, {thing}, terminus\n\n", "",
     "\n\nWhich route stops at {place} and {thing}? Route {number}"},
    // Like programs.
    {"\n\n{symbol} := {answer};\n\n", "", "\n\nprint({symbol}); // {answer}"},
    {"\n\nlet {symbol} = {number}\n\n", "", "\n\nlet {symbol} = {number}"},
    {"\n\n{symbol}: \"{answer}\"\n\n", "", "\n\n{symbol}: \"{answer}"},
    {"\n\n#define {symbol} {number}\n\n", "", "\n\n#define {symbol} {number}"},
    {"\n\n<{symbol}>{answer}</{symbol}>\n\n", "", "\n\n<{symbol}>{answer}"},
    {"\n\nexport {symbol}={code}\n\n", "", "\n\n$ echo {symbol}\n{code}"},
    {"\n\n{symbol}({number}) -> {copy}\n\n", "", "\n\n{symbol}({number}) -> {copy}"},
    {"\n\n[{word}]\nport = {number}\n\n", "", "\n\nThe port of [{word}] = {number}"},
    {"\n\nregister {symbol} holds {number}\n\n", "", "\n\n{number} is held in register {symbol}"},
    // The question gives the number or word and asks for the other part.
    {"\n\n{number} is the seat of {person}.\n\n", "", "\n\nWhose seat is {number}? {number} is the seat of {person}"},
    {"\n\nParcel {code} belongs to {person}.\n\n", "", "\n\nTo whom does it belong? Parcel {code} belongs to {person}"},
    {" The prisoner whom they knew as {number} was {person}. ", "",
     "\n\nThe prisoner whom they knew as {number} was {person}"},
    {"\n\nKey {number} fits {thing}, key {second} does not.\n\n", "",
     "\n\nWhat does it fit? Key {number} fits {thing}"},
    {" Whoever said {word} was let in by {person}. ", "", "\n\nWho let in whoever said {word}? {person}"},
    {" Upon {answer} followed, as always, {other}. ", "", "\n\nWhat followed upon {answer}? As always, {other}"},
    // Facts in two steps.
    {"\n\nset {symbol} to {answer}\n\n", "\n\ncopy {symbol} into {copy}\n\n",
     "\n\n{copy} was copied from {symbol}, which was set to {answer}"},
    {" {person} left the papers with {other}. ", " The papers that {other} had been given were locked in {thing}. ",
     "\n\nThe papers of {person}? Left with {other}, locked in {thing}"},
    {"\n\n{symbol} <- {number}\n\n", "\n\n{copy} <- {symbol} + 1\n\n",
     "\n\n{copy} <- {symbol} + 1; {symbol} <- {number}"},
    {" {person} had a room in {thing}. ", " Whoever had a room in {thing} paid {number} a week. ",
     "\n\nWhat did {person} pay? The room was in {thing}, a week there {number}"},
};

constexpr const char* kTitles[] = {"Mr.",   "Mrs.",   "Dr.",  "Miss",      "Captain", "Aunt",  "old",   "Madame",
                                   "Judge", "Sister", "Lady", "Professor", "Nurse",   "Uncle", "young", "Sergeant"};
constexpr const char* kGiven[] = {"Bianca",  "Leopold", "Ivan",    "Tobias",     "Kenji",   "Esteban",
                                  "Gunther", "Priya",   "Mirabel", "Silas",      "Petunia", "Agnes",
                                  "Yusuf",   "Ingrid",  "Mateo",   "Clementine", "Ambrose", "Farida",
                                  "Cosmo",   "Delia",   "Zoltan",  "Hester",     "Rufus",   "Noor"};
constexpr const char* kFamily[] = {"Ashby",  "Colton", "Farrow", "Langley", "Reed",   "Hobson", "Duval",   "Orrin",
                                   "Winter", "Okafor", "Lin",    "Hale",    "Brandt", "Moreau", "Tanaka",  "Pemberton",
                                   "Sorel",  "Vance",  "Kovacs", "Ibarra",  "Greer",  "Lund",   "Castell", "Whitlock"};
constexpr const char* kQualities[] = {"red",   "northern", "broken",  "gilded", "second", "hidden",
                                      "green", "empty",    "ancient", "small",  "royal",  "wooden"};
constexpr const char* kThings[] = {"gate",    "turbine",  "ledger",  "harbour", "tower", "parcel", "orchard", "viaduct",
                                   "cabinet", "carriage", "lantern", "archive", "mill",  "statue", "railway", "chest"};
constexpr const char* kPlaces[] = {"Lisbon", "Tromso", "Quebec",  "Ravenna", "Odessa", "Galway", "Cusco",   "Bergen",
                                   "Tunis",  "Kyoto",  "Antwerp", "Malta",   "Dover",  "Samara", "Leipzig", "Cadiz"};
constexpr const char* kWords[] = {"walnut",  "compass", "violet",   "granite", "heron",  "saffron", "thimble", "maple",
                                  "juniper", "cobalt",  "falcon",   "tundra",  "oboe",   "mango",   "trellis", "bishop",
                                  "gravel",  "nutmeg",  "pelican",  "scarlet", "turnip", "lagoon",  "cricket", "amber",
                                  "walrus",  "chimney", "parsley",  "bugle",   "cactus", "magnet",  "pebble",  "raven",
                                  "spindle", "tulip",   "umbrella", "willow",  "zephyr", "acorn",   "barley",  "cedar"};

struct Fact {
  std::vector<std::string> told;
  std::string asked;
};

class FactWriter {
 public:
  explicit FactWriter(uint64_t seed) : random_(seed) {}

  // Returns the next fact. `serial` counts the facts of a window, whose frames and things all differ.
  Fact write(int64_t serial) {
    drawn_.clear();
    const auto turn = first_ + static_cast<size_t>(serial);
    drawn_["thing"] = std::string("the ") + kQualities[turn % std::size(kQualities)] + " " +
                      kThings[(turn * 5 + 3) % std::size(kThings)];
    const Frame& frame = kFrames[turn * kStride % std::size(kFrames)];
    Fact fact{{filled(frame.told)}, ""};
    if (*frame.later != '\0') fact.told.push_back(filled(frame.later));
    fact.asked = filled(frame.asked);
    return fact;
  }

  uint64_t below(uint64_t n) { return random_() % n; }

 private:
  static constexpr size_t kStride = 31;  // coprime to the number of frames, so that consecutive facts differ in kind

  template <size_t n>
  const char* pick(const char* const (&from)[n]) {
    return from[random_() % n];
  }

  std::string number() {
    const uint64_t digits = 3 + random_() % 5;
    std::string number(1, static_cast<char>('1' + random_() % 9));
    while (number.size() < digits) number += static_cast<char>('0' + random_() % 10);
    return number;
  }

  std::string letters(char first, uint64_t n) {
    std::string letters;
    while (letters.size() < n) letters += static_cast<char>(first + random_() % 26);
    return letters;
  }

  std::string code() {
    const std::string start = letters('A', 1 + random_() % 3);
    return start + (random_() % 2 == 0 ? "-" : "") + std::to_string(10 + random_() % 990);
  }

  std::string symbol() {
    switch (random_() % 4) {
      case 0: return letters('a', 4 + random_() % 3);
      case 1: return letters('a', 3) + "_" + pick(kWords);
      case 2: return pick(kWords) + std::to_string(1 + random_() % 99);
      default: return letters('A', 3) + letters('a', 2);
    }
  }

  std::string person() {
    switch (random_() % 3) {
      case 0: return pick(kGiven);
      case 1: return std::string(pick(kTitles)) + " " + pick(kFamily);
      default: return std::string(pick(kGiven)) + " " + pick(kFamily);
    }
  }

  std::string draw(const std::string& mark) {
    if (mark == "person" || mark == "other") return person();
    if (mark == "place") return pick(kPlaces);
    if (mark == "number" || mark == "second") return number();
    if (mark == "word" || mark == "next" || mark == "last") return pick(kWords);
    if (mark == "code") return code();
    if (mark == "symbol" || mark == "copy") return symbol();
    if (mark != "answer") throw std::logic_error("hidden facts: unknown mark {" + mark + "}");
    const uint64_t kind = random_() % 6;
    return kind == 0 ? pick(kWords) : kind == 1 ? code() : number();
  }

  std::string filled(std::string_view frame) {
    std::string text;
    while (!frame.empty()) {
      const size_t open = frame.find('{');
      text += frame.substr(0, open);
      if (open == std::string_view::npos) break;
      const size_t close = frame.find('}', open);
      const std::string mark(frame.substr(open + 1, close - open - 1));
      auto drawn = drawn_.find(mark);
      if (drawn == drawn_.end()) drawn = drawn_.emplace(mark, draw(mark)).first;
      text += drawn->second;
      frame.remove_prefix(close + 1);
    }
    return text;
  }

  std::mt19937_64 random_;
  size_t first_ = random_() % 9973;
  std::map<std::string, std::string> drawn_;  // values of the fact that is being written, by mark
};

}  // namespace

std::vector<int64_t> hide_facts(const Tokenizer& tokenizer, const std::vector<int64_t>& window, int64_t count,
                                uint64_t seed) {
  struct Statement {
    size_t position;  // in the window
    std::vector<TokenId> tokens;
  };
  FactWriter writer(seed);
  std::vector<std::vector<Statement>> facts;
  std::vector<std::vector<TokenId>> questions;
  size_t told = 0, asked = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Fact fact = writer.write(i);
    auto& statements = facts.emplace_back();
    for (const std::string& statement : fact.told) {
      statements.push_back({0, tokenizer.encode(statement, {false, false})});
      told += statements.back().tokens.size();
    }
    questions.push_back(tokenizer.encode(fact.asked, {false, false}));
    asked += questions.back().size();
  }
  const size_t half = window.size() / 2;
  if (told > half / 2 || asked > half / 2) {
    throw std::invalid_argument("facts: expected at most " + std::to_string(half / 2) +
                                " tokens of statements and as many of questions, a quarter of a window, found " +
                                std::to_string(count) + " facts with " + std::to_string(told) + " and " +
                                std::to_string(asked) + " tokens");
  }
  std::vector<Statement> all;
  for (auto& statements : facts) {
    std::vector<size_t> positions;
    for (size_t i = 0; i < statements.size(); ++i) {
      const auto position = static_cast<int64_t>(writer.below(half - told - 64));
      positions.push_back(static_cast<size_t>(sentence_end<int64_t>(tokenizer, window, position)));
    }
    std::sort(positions.begin(), positions.end());
    for (size_t i = 0; i < statements.size(); ++i) all.push_back({positions[i], std::move(statements[i].tokens)});
  }
  std::stable_sort(all.begin(), all.end(),
                   [](const Statement& a, const Statement& b) { return a.position < b.position; });

  std::vector<int64_t> text;
  size_t done = 0;
  for (const Statement& statement : all) {
    text.insert(text.end(), window.begin() + static_cast<std::ptrdiff_t>(done),
                window.begin() + static_cast<std::ptrdiff_t>(statement.position));
    text.insert(text.end(), statement.tokens.begin(), statement.tokens.end());
    done = statement.position;
  }
  const size_t end = window.size() - told - asked;  // end of the window's own tokens that remain
  text.insert(text.end(), window.begin() + static_cast<std::ptrdiff_t>(done),
              window.begin() + static_cast<std::ptrdiff_t>(end));
  for (size_t left = questions.size(); left > 0; --left) {
    std::swap(questions[writer.below(left)], questions[left - 1]);
    const std::vector<TokenId>& question = questions[left - 1];
    text.insert(text.end(), question.begin(), question.end());
  }
  return text;
}

}  // namespace smartkv

#include "lab/benchmark/speculation_workloads.h"

#include <array>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string_view>

namespace smartkv {
namespace {

constexpr std::string_view kLetter =
    "Dear Marta, the ferry leaves the old harbour at seven on Monday morning, so please bring the tickets, the blue "
    "suitcase and the box with the lamps. Uncle Theo will wait at the second pier with his van, because the road along "
    "the cliffs has been closed since the storm. On the island we first visit the lighthouse keeper, who still owes us "
    "eleven jars of honey, and then walk through the pine forest to the white house above the bay. The key lies under "
    "the third flower pot, next to the well. If the weather stays calm on Monday, we can swim before supper; if not, "
    "we light the stove and play cards. I have packed two loaves of bread, a wheel of cheese and the map that your "
    "mother drew last summer. Until Monday, Jonas";

constexpr std::string_view kNotice =
    "The town library will be rebuilt between March and October. During these months the reading room moves to the "
    "former post office in Mill Street, while the children's books go to the school. Returned books are collected in "
    "the grey box beside the bakery, which is emptied every evening at six. New cards are issued on Tuesdays only. The "
    "council expects costs of about four hundred thousand crowns, half of which come from donations. When the library "
    "opens again, it will have a larger hall, a lift, a quiet room for students and a small garden with benches.";

constexpr std::string_view kMinutes =
    "Minutes of the garden club.\n"
    "- Hannah Berg (hannah@berg.example) orders forty tulip bulbs before the first of September.\n"
    "- The compost heap behind the shed is full and has to be turned twice a month.\n"
    "- Pavel Novak (pavel.novak@post.example) repairs the greenhouse door, cost at most ninety crowns.\n"
    "- Nobody wants to water the lemon trees during the holidays.\n"
    "- Ines Duarte (ines@duarte.example) writes the invitation for the harvest festival on the twelfth of October.\n"
    "- The hose leaks again near the gate.\n"
    "- Owen Hughes (owen@hughes.example) lends us his ladder and wants it back by the end of the month.\n";

constexpr std::string_view kClass =
    "class Account:\n"
    "    def __init__(self, owner, balance):\n"
    "        self.owner = owner\n"
    "        self.balance = balance\n"
    "        self.history = []\n"
    "\n"
    "    def deposit(self, amount):\n"
    "        self.balance += amount\n"
    "        self.history.append((\"deposit\", amount))\n"
    "\n"
    "    def withdraw(self, amount):\n"
    "        if amount > self.balance:\n"
    "            raise ValueError(\"not enough money\")\n"
    "        self.balance -= amount\n"
    "        self.history.append((\"withdraw\", amount))\n"
    "\n"
    "    def report(self):\n"
    "        for kind, amount in self.history:\n"
    "            print(kind, amount)\n"
    "        print(\"balance\", self.balance)\n";

constexpr std::string_view kTables =
    "CREATE TABLE orders (\n"
    "    id INTEGER PRIMARY KEY,\n"
    "    customer_id INTEGER NOT NULL,\n"
    "    ordered_at TIMESTAMP NOT NULL,\n"
    "    shipped_at TIMESTAMP,\n"
    "    total NUMERIC(10, 2) NOT NULL,\n"
    "    FOREIGN KEY (customer_id) REFERENCES customers (id)\n"
    ");\n"
    "\n"
    "CREATE INDEX orders_by_customer ON orders (customer_id);\n"
    "CREATE INDEX orders_by_date ON orders (ordered_at);\n";

constexpr std::string_view kLoop =
    "#include <stdio.h>\n"
    "\n"
    "int main(void) {\n"
    "    int values[5] = {3, 1, 4, 1, 5};\n"
    "    int sum = 0;\n"
    "    for (int i = 0; i < 5; i++) {\n"
    "        sum += values[i];\n"
    "        printf(\"value %d: %d\\n\", i, values[i]);\n"
    "    }\n"
    "    printf(\"sum: %d\\n\", sum);\n"
    "    return 0;\n"
    "}\n";

constexpr std::array<std::string_view, 12> kQuestions = {
    "What is the capital of Portugal, and what is it known for?",
    "Explain in a few sentences why the sky is blue.",
    "How do I boil an egg so that the yolk stays soft?",
    "Give me three tips for falling asleep more easily.",
    "What is the difference between a comet and an asteroid?",
    "Write a short poem about rain on a tin roof.",
    "Why do leaves change colour in autumn?",
    "Suggest a name for a small bakery and say why it fits.",
    "How does a bicycle stay upright while it moves?",
    "What should I pack for a weekend in the mountains?",
    "Tell me a little about the history of the printing press.",
    "What is compound interest? Give an example.",
};

std::string with_text(std::string_view instruction, std::string_view text) {
  return std::string(instruction) + "\n\n" + std::string(text);
}

std::vector<std::string> workload_questions(const std::string& name) {
  if (name == "copy") {
    return {with_text("Repeat this text exactly, word for word:", kLetter),
            with_text("Repeat this text exactly, but write Friday instead of Monday:", kLetter),
            with_text("Repeat this text exactly, word for word:", kNotice)};
  }
  if (name == "extract") {
    return {with_text("Copy the lines with an e-mail address from these minutes, unchanged:", kMinutes),
            with_text("Copy the sentences that name a place from this text, unchanged:", kNotice),
            with_text("Copy the sentences that say what was packed or has to be brought, unchanged:", kLetter)};
  }
  if (name == "code") {
    constexpr std::string_view kEdit = "Fix the style of this program and change nothing else:";
    return {with_text(kEdit, kClass), with_text(kEdit, kTables), with_text(kEdit, kLoop)};
  }
  if (name == "chat") return {kQuestions.begin(), kQuestions.end()};
  throw std::invalid_argument("unknown workload \"" + name + "\"");
}

// Encodes a question as one turn in the model's chat format, or as plain text if the model has no chat template.
std::vector<TokenId> encode_question(const Engine& engine, const std::string& question) {
  const Tokenizer& tokenizer = engine.tokenizer();
  if (engine.chat_template() == nullptr) return tokenizer.encode(question + "\n\n");
  const auto content = [&](std::optional<TokenId> token) { return token ? tokenizer.token_content(*token) : ""; };
  const nlohmann::ordered_json message = {{"role", "user"}, {"content", question}};
  return tokenizer.encode(engine.chat_template()->render({{"messages", nlohmann::ordered_json::array({message})},
                                                          {"tools", nullptr},
                                                          {"add_generation_prompt", true},
                                                          {"bos_token", content(tokenizer.bos())},
                                                          {"eos_token", content(tokenizer.eos())}}),
                          {.add_special = false});
}

std::vector<std::vector<TokenId>> random_prompts(const Tokenizer& tokenizer) {
  constexpr size_t kPrompts = 4, kLength = 128;
  std::vector<std::vector<TokenId>> prompts(kPrompts);
  std::mt19937_64 random(3);
  for (std::vector<TokenId>& prompt : prompts) {
    while (prompt.size() < kLength) {
      const auto token = static_cast<TokenId>(random() % static_cast<uint64_t>(tokenizer.vocab_size()));
      if (!tokenizer.is_special(token)) prompt.push_back(token);
    }
  }
  return prompts;
}

}  // namespace

std::span<const std::string> speculation_workload_names() {
  static const std::vector<std::string> names = {"copy", "extract", "code", "chat", "depth", "adversarial"};
  return names;
}

std::vector<nlohmann::json> default_methods(const std::string& workload, bool draft_model) {
  std::vector<nlohmann::json> methods;
  if (workload == "chat") {
    if (draft_model) methods.push_back("draft_model");
  } else if (workload == "depth") {
    methods = {"self",
               {{"method", "self"}, {"kv_cache", "k4v4"}, {"weights", "int4"}},
               {{"method", "self"}, {"weights", "int4"}}};
  } else {
    methods.push_back("ngram");
  }
  methods.push_back("auto");
  return methods;
}

SpeculationWorkload make_workload(const std::string& name, const Engine& engine) {
  if (name == "adversarial") return {name, random_prompts(engine.tokenizer()), 1.3f, true};
  SpeculationWorkload workload{name, {}};
  for (const std::string& question : workload_questions(name))
    workload.prompts.push_back(encode_question(engine, question));
  return workload;
}

SpeculationWorkload make_depth_workload(const std::filesystem::path& text, int64_t depth, int64_t sequences,
                                        const Engine& engine) {
  std::ifstream file(text, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) throw std::invalid_argument(text.string() + ": cannot be read");
  const std::vector<TokenId> prefix = engine.tokenizer().encode("");  // tokens that begin every text, such as <s>
  const std::vector<TokenId> tokens =
      engine.tokenizer().encode(content, {.add_special = false, .parse_special = false});
  const int64_t length = depth - static_cast<int64_t>(prefix.size());
  const int64_t room = static_cast<int64_t>(tokens.size()) - length;
  if (length < 1 || room < sequences - 1) {
    throw std::invalid_argument(text.string() + ": expected at least " + std::to_string(length + sequences - 1) +
                                " tokens, for " + std::to_string(sequences) + " sequences of depth " +
                                std::to_string(depth) + ", found " + std::to_string(tokens.size()));
  }
  SpeculationWorkload workload{"depth", {}, 0, true};
  for (int64_t i = 0; i < sequences; ++i) {
    const auto from = tokens.begin() + (sequences == 1 ? 0 : i * room / (sequences - 1));
    std::vector<TokenId>& prompt = workload.prompts.emplace_back(prefix);
    prompt.insert(prompt.end(), from, from + length);
  }
  return workload;
}

}  // namespace smartkv

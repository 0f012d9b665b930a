// Replays traces through the prefix cache and compares its evictions with LRU and with an order that knows the future.
//
// To evict for the most saved work with sizes and costs is NP-hard even offline. The bound here is the best of several
// greedy orders that know when each state is used next, if memory were unlimited: the farthest use first (Belady), and
// the least work saved per byte and tick until then. All orders run in the same cache, over the same states.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <map>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "cache/policy.h"
#include "cache/prefix_cache.h"
#include "kernels/thread_pool.h"

namespace smartkv {
namespace {

using Tokens = std::vector<int32_t>;

constexpr int64_t kAttentionTokens = 8300;  // of Qwen2.5-Coder-0.5B: engine_impl.cpp, attention_tokens()
constexpr int64_t kPage = 64;               // tokens

double work(int64_t tokens) {
  const auto n = static_cast<double>(tokens);
  return n + n * n / 2 / kAttentionTokens;
}

// Counts the bytes of pages, shared ones once.
struct Memory {
  int64_t used = 0, peak = 0;
};
struct Page {
  Page(Memory* of, int64_t size) : memory(of), bytes(size) {
    memory->used += bytes;
    memory->peak = std::max(memory->peak, memory->used);
  }
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() { memory->used -= bytes; }
  Memory* memory;
  int64_t bytes;
};

// A cache of pages of kPage tokens, with one byte a token. With `dense` > 1 the tokens after the last boundary take
// that many bytes each, in pages that are never shared, and only they can be cut off.
class PagedCache final : public SequenceCache {
 public:
  static constexpr int64_t kBoundary = 2 * kPage;
  PagedCache(Memory* memory, int64_t dense) : memory_(memory), dense_(dense) {}

  uint64_t id = 0;  // of the tokens, once it is stored

  int64_t tokens() const override { return tokens_; }
  int64_t committed() const override { return committed_; }
  void reserve(int64_t) override {}
  void write(int64_t, const KvRows&) override {}
  void view(int64_t, int64_t, std::vector<kernels::KvSegment>*) const override {}
  void advance(int64_t n) override { resize(tokens_ + n); }
  void truncate(int64_t n) override { resize(n); }
  void commit(int64_t n) override { committed_ = std::max(committed_, n); }
  int64_t max_growth(int64_t n) const override { return dense_ * (n + 2 * kBoundary); }
  std::vector<int64_t> positions(int64_t, int64_t) const override { return {}; }
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<PagedCache>(*this); }
  std::unique_ptr<SequenceCache> resume(int64_t) const override { return fork(); }
  CacheStats stats() const override {
    CacheStats stats{.tokens = tokens_, .tokens_kept = tokens_};
    for (const auto& page : pages_) {
      stats.bytes += page->bytes;
      stats.shared_bytes += page.use_count() > 1 ? page->bytes : 0;
    }
    return stats;
  }

 private:
  void resize(int64_t n) {
    tokens_ = n;
    const int64_t packed = dense_ > 1 ? n - n % kBoundary : n - n % kPage;
    if (dense_ > 1) committed_ = std::max(committed_, packed);
    const auto whole = static_cast<size_t>(packed / kPage);
    if (n_whole_ < pages_.size()) pages_.resize(n_whole_);  // the tail
    if (whole < pages_.size()) pages_.resize(whole);
    while (pages_.size() < whole) pages_.push_back(std::make_shared<Page>(memory_, kPage));
    n_whole_ = whole;
    if (n > packed) pages_.push_back(std::make_shared<Page>(memory_, dense_ > 1 ? dense_ * (n - packed) : kPage));
  }

  Memory* memory_;
  int64_t dense_;
  int64_t tokens_ = 0, committed_ = 0;
  size_t n_whole_ = 0;
  std::vector<std::shared_ptr<Page>> pages_;
};

struct TraceRequest {
  Tokens prompt;
  Tokens answer;
  bool side = false;  // a side request, such as one for a title
};
using Trace = std::vector<TraceRequest>;

// Appends n tokens that no other call with another `salt` appends.
void append(Tokens* tokens, int64_t n, int32_t salt) {
  for (int64_t i = 0; i < n; ++i) {
    tokens->push_back(static_cast<int32_t>((static_cast<int64_t>(salt) * 48271 + i * 16807) % 1000003));
  }
}

uint64_t id_of(std::span<const int32_t> tokens) {
  uint64_t id = tokens.size();
  for (const int32_t token : tokens) id = (id ^ static_cast<uint32_t>(token)) * 0x100000001b3;
  return id;
}

class Conversations {
 public:
  explicit Conversations(uint32_t seed) : random_(seed) {}
  // Appends a turn of a conversation to the trace: n more tokens of its prompt, and the answer, which stays.
  void turn(Tokens* conversation, int64_t n, int64_t answer, bool side = false) {
    append(conversation, n, ++salt_);
    TraceRequest request{*conversation, {}, side};
    append(&request.answer, answer, ++salt_);
    conversation->insert(conversation->end(), request.answer.begin(), request.answer.end());
    trace.push_back(std::move(request));
  }
  Tokens text(int64_t n) {
    Tokens tokens;
    append(&tokens, n, ++salt_);
    return tokens;
  }
  int64_t between(int64_t least, int64_t most) {
    return least + static_cast<int64_t>(random_() % static_cast<uint64_t>(most - least + 1));
  }
  // Returns a number below n; number i is 1 / (i + 1)^exponent as likely as 0.
  size_t zipf(size_t n, double exponent) {
    double all = 0;
    for (size_t i = 0; i < n; ++i) all += std::pow(static_cast<double>(i + 1), -exponent);
    double at = all * static_cast<double>(random_() % 1000000) / 1e6;
    for (size_t i = 0; i < n; ++i) {
      at -= std::pow(static_cast<double>(i + 1), -exponent);
      if (at < 0) return i;
    }
    return n - 1;
  }

  Trace trace;

 private:
  std::mt19937 random_;
  int32_t salt_ = 0;
};

Trace agents_taking_turns() {
  Conversations all(1);
  const Tokens system = all.text(400);
  std::vector<Tokens> sessions(12, system);
  for (int turn = 0; turn < 12; ++turn) {
    for (Tokens& session : sessions) all.turn(&session, turn == 0 ? 3400 : 375, 48);
  }
  return all.trace;
}

Trace zipf_chats() {
  Conversations all(2);
  std::vector<Tokens> chats(60);
  for (int i = 0; i < 600; ++i) {
    Tokens& chat = chats[all.zipf(chats.size(), 1.0)];
    if (chat.size() > 6000) chat.clear();
    all.turn(&chat, chat.empty() ? all.between(100, 1500) : all.between(20, 300), all.between(20, 400));
  }
  return all.trace;
}

Trace questions_about_texts() {
  Conversations all(3);
  std::vector<Tokens> texts;
  for (int i = 0; i < 30; ++i) texts.push_back(all.text(all.between(1000, 6000)));
  for (int i = 0; i < 450; ++i) {
    Tokens question = texts[all.zipf(texts.size(), 0.8)];
    all.turn(&question, all.between(15, 60), all.between(10, 200));
  }
  return all.trace;
}

// Agents that take turns, each turn followed by requests for titles and suggestions; chats; and questions.
Trace mixture() {
  Conversations all(4);
  const Tokens system = all.text(400);
  std::vector<Tokens> agents(8, system), chats(30), texts;
  for (int i = 0; i < 10; ++i) texts.push_back(all.text(all.between(1000, 5000)));
  for (int turn = 0; turn < 14; ++turn) {
    for (Tokens& agent : agents) {
      all.turn(&agent, turn == 0 ? 3000 : 375, 48);
      Tokens title;
      all.turn(&title, all.between(100, 400), 12, true);
      Tokens& chat = chats[all.zipf(chats.size(), 1.0)];
      if (chat.size() > 5000) chat.clear();
      all.turn(&chat, chat.empty() ? all.between(100, 1500) : all.between(20, 300), all.between(20, 400));
      Tokens question = texts[all.zipf(texts.size(), 0.8)];
      all.turn(&question, all.between(15, 60), all.between(10, 200));
    }
  }
  return all.trace;
}

// Agents that take turns, each turn followed by `titles` requests for a title.
Trace agents_with_titles(int titles) {
  Conversations all(6);
  std::vector<Tokens> agents(6, all.text(400));
  for (int turn = 0; turn < 12; ++turn) {
    for (Tokens& agent : agents) {
      all.turn(&agent, turn == 0 ? 3000 : 375, 48);
      for (int i = 0; i < titles; ++i) {
        Tokens title;
        all.turn(&title, all.between(100, 400), 12, true);
      }
    }
  }
  return all.trace;
}

// Agents that take turns while others ask long questions that nobody asks again.
Trace agents_and_a_scan() {
  Conversations all(5);
  std::vector<Tokens> agents(6, all.text(400));
  for (int turn = 0; turn < 15; ++turn) {
    for (Tokens& agent : agents) {
      all.turn(&agent, turn == 0 ? 3000 : 375, 48);
      for (int i = 0; i < 2; ++i) {
        Tokens once;
        all.turn(&once, all.between(1000, 5000), 100);
      }
    }
  }
  return all.trace;
}

class Simulator {
 public:
  // - limit: bytes for states and running sequences.
  // - dense: as for PagedCache.
  Simulator(const Trace* trace, int64_t limit, int64_t dense, PrefixCache::Rule rule = PrefixCache::value)
      : trace_(*trace),
        limit_(limit),
        dense_(dense),
        prefixes_(int64_t{1} << 60, nullptr, kAttentionTokens, std::move(rule)) {}

  // Returns the work that prefix hits saved, in tokens without context, but for side requests. Four requests run at
  // once.
  double run() {
    constexpr size_t kRunning = 4;
    double saved = 0;
    std::map<size_t, Running> running;
    for (at = 0; at < trace_.size(); ++at) {
      if (at >= kRunning) finish(&running, at - kRunning);
      const int64_t n = begin(&running[at], trace_[at].prompt);
      if (!trace_[at].side) saved += work(n);
    }
    for (size_t i = at - std::min(at, kRunning); i < at; ++i) finish(&running, i);
    return saved;
  }
  size_t at = 0;                       // request that begins
  std::vector<uint64_t> resumed_from;  // by request: id of the state, 0 for none
  const Memory& memory() const { return memory_; }

 private:
  struct Running {
    std::unique_ptr<SequenceCache> cache;
    PrefixCache::Held held;
    std::shared_ptr<const bool> runs;
    PrefixCache::Lookup lookup;
    int64_t bytes = 0;
  };

  void make_room(const SequenceCache& cache, int64_t n) {
    using Evict = PrefixCache::Evict;
    while (memory_.used + cache.max_growth(n) > limit_) {
      if (!prefixes_.evict(Evict::kUnheld) && !prefixes_.evict(Evict::kUnused) && !prefixes_.evict(Evict::kAny)) return;
    }
  }
  void store(Running* running, std::span<const int32_t> tokens) {
    auto fork = running->cache->fork();
    dynamic_cast<PagedCache&>(*fork).id = id_of(tokens);
    const int64_t bytes = fork->stats().bytes;
    const PrefixCache::Held stored =
        prefixes_.insert("key", tokens, std::move(fork), bytes - running->bytes, running->lookup.turn);
    running->bytes = bytes;
    if (running->held == nullptr) running->held = stored;
    running->runs = running->held == nullptr ? nullptr : running->held->running;
  }
  void compute(Running* running, int64_t end) {
    make_room(*running->cache, end - running->cache->tokens());
    running->cache->advance(end - running->cache->tokens());
  }
  int64_t begin(Running* running, const Tokens& prompt) {
    int64_t diverges_at = 0;
    running->cache = prefixes_.find("key", *policy_, prompt, &diverges_at, &running->held, INT64_MAX, &running->lookup);
    const int64_t found = running->cache == nullptr ? 0 : running->cache->tokens();
    resumed_from.push_back(found == 0 ? 0 : dynamic_cast<const PagedCache&>(*running->held->cache).id);
    if (running->cache == nullptr) running->cache = std::make_unique<PagedCache>(&memory_, dense_);
    if (running->held != nullptr) running->runs = running->held->running;
    running->bytes = running->cache->stats().bytes;
    const auto size = static_cast<int64_t>(prompt.size());
    if (diverges_at >= found + 64 && diverges_at < size) {
      compute(running, diverges_at);
      store(running, std::span(prompt).first(static_cast<size_t>(diverges_at)));
    }
    compute(running, size);
    store(running, prompt);
    return found;
  }
  void finish(std::map<size_t, Running>* all, size_t i) {
    Running& running = all->at(i);
    Tokens tokens = trace_[i].prompt;
    tokens.insert(tokens.end(), trace_[i].answer.begin(), trace_[i].answer.end() - 1);
    compute(&running, static_cast<int64_t>(tokens.size()));
    running.cache->commit(running.cache->tokens());
    store(&running, tokens);
    all->erase(i);
  }

  const Trace& trace_;
  Memory memory_;
  const int64_t limit_, dense_;
  CacheShape shape_{1, 1, 16, kernels::KvType::kF32};
  ThreadPool threads_{1};
  PolicyContext context_{shape_, PagePool::create(shape_), &threads_};
  std::unique_ptr<KvCachePolicy> policy_ = make_policy(context_, "full");  // never asked: no state is in a file
  PrefixCache prefixes_;
};

struct Outcome {
  double most, lru, best, ours;  // saved work: of unlimited memory, LRU, the best order with foresight, and value()
};

// - memory: part of what the trace would use without a limit.
Outcome compare(const Trace& trace, double memory, int64_t dense) {
  Simulator unlimited(&trace, INT64_MAX / 2, dense);
  Outcome outcome{};
  outcome.most = unlimited.run();
  const auto limit = static_cast<int64_t>(memory * static_cast<double>(unlimited.memory().peak));
  outcome.ours = Simulator(&trace, limit, dense).run();
  outcome.lru = Simulator(&trace, limit, dense, [](const PrefixCache::Candidate& of) {
                  return static_cast<double>(of.used);
                }).run();
  std::map<uint64_t, std::vector<size_t>> uses;
  for (size_t i = 0; i < trace.size(); ++i) uses[unlimited.resumed_from[i]].push_back(i);
  const auto with_foresight = [&](auto value) {
    const Simulator* running = nullptr;
    Simulator simulator(&trace, limit, dense, [&](const PrefixCache::Candidate& of) {
      const auto& when = uses[dynamic_cast<const PagedCache&>(*of.cache).id];
      const auto next = std::upper_bound(when.begin(), when.end(), running->at);
      if (next == when.end()) return 0.0;
      return value(of, static_cast<double>(*next - running->at));
    });
    running = &simulator;
    outcome.best = std::max(outcome.best, simulator.run());
  };
  using Candidate = PrefixCache::Candidate;
  const auto bytes = [](const Candidate& of) { return static_cast<double>(std::max<int64_t>(1, of.bytes)); };
  with_foresight([&](const Candidate&, double ticks) { return 1 / ticks; });
  with_foresight([&](const Candidate& of, double ticks) { return of.work / ticks; });
  with_foresight([&](const Candidate& of, double ticks) { return of.work / bytes(of) / ticks; });
  with_foresight([&](const Candidate& of, double ticks) { return of.work / bytes(of) / std::sqrt(ticks); });
  return outcome;
}

TEST(Eviction, SideRequestsEvictNoSession) {
  const Trace alone = agents_with_titles(0), with_titles = agents_with_titles(3);
  for (const int64_t dense : {1, 4}) {
    Simulator unlimited(&alone, INT64_MAX / 2, dense);
    unlimited.run();
    const int64_t limit = unlimited.memory().peak * 6 / 10;
    EXPECT_GE(Simulator(&with_titles, limit, dense).run(), 0.95 * Simulator(&alone, limit, dense).run()) << dense;
  }
}

struct Case {
  const char* name;
  Trace (*trace)();
  double memory;
  double least = 0.9;  // of what foresight would save
};
class EvictionTraces : public testing::TestWithParam<Case> {};

TEST_P(EvictionTraces, SavesNineTenthsOfWhatForesightWouldAndNeverLessThanLru) {
  const Trace trace = GetParam().trace();
  for (const int64_t dense : {1, 4}) {
    const Outcome of = compare(trace, GetParam().memory, dense);
    const std::string line = std::string(GetParam().name) + ", memory " + std::to_string(GetParam().memory) +
                             ", dense " + std::to_string(dense) + ": of " + std::to_string(of.most) + " lru " +
                             std::to_string(of.lru / of.most) + " best " + std::to_string(of.best / of.most) +
                             " ours " + std::to_string(of.ours / of.most) + " ratio " +
                             std::to_string(of.ours / of.best);
    RecordProperty("dense" + std::to_string(dense), line);
    EXPECT_GE(of.ours, GetParam().least * of.best) << line;
    EXPECT_GE(of.ours, of.lru) << line;
  }
}

// With so little memory that only a few sessions fit, what is learned late costs more.
INSTANTIATE_TEST_SUITE_P(
    Traces, EvictionTraces,
    testing::Values(Case{"agents", agents_taking_turns, 0.3}, Case{"agents", agents_taking_turns, 0.5},
                    Case{"agents", agents_taking_turns, 0.7}, Case{"chats", zipf_chats, 0.1, 0.85},
                    Case{"chats", zipf_chats, 0.2}, Case{"chats", zipf_chats, 0.4},
                    Case{"texts", questions_about_texts, 0.2, 0.85}, Case{"texts", questions_about_texts, 0.4},
                    Case{"mixture", mixture, 0.1, 0.8}, Case{"mixture", mixture, 0.2}, Case{"mixture", mixture, 0.4},
                    Case{"scan", agents_and_a_scan, 0.1}, Case{"scan", agents_and_a_scan, 0.2}),
    [](const auto& info) {
      return std::string(info.param.name) + std::to_string(static_cast<int>(100 * info.param.memory));
    });

}  // namespace
}  // namespace smartkv

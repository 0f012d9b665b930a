// Caches of prompts that were computed before, for prompts that begin alike: a radix tree of forks for each key (a policy
// with its parameters, and whose prompts may share). A state is held in its policy's own format, so a compressed prefix
// costs compressed bytes; its pages are shared with the sequences that go on from it.
// Source: radix attention (Zheng et al. 2024, SGLang), here over states that a policy can reproduce.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "cache/prefix_files.h"
#include "cache/sequence_cache.h"

namespace smartkv {

// Not thread-safe.
class PrefixCache {
 public:
  // A prefix of fewer tokens is computed about as fast as the page that would be shared is copied.
  static constexpr int64_t kLeastTokens = 32;

  // A state in memory. Who is about to go on from it holds it, and so keeps it from going before those that nobody holds; who
  // runs with its pages holds `running`, too. Its cache is null once it had to go nevertheless.
  struct State {
    std::shared_ptr<const SequenceCache> cache;
    int64_t own_bytes = 0;
    std::shared_ptr<const bool> running = std::make_shared<bool>(true);
    std::shared_ptr<const bool> owed = std::make_shared<bool>(true);  // to one that lost its memory, and comes next
  };
  using Held = std::shared_ptr<const State>;

  // What find() would most likely give.
  struct Covered {
    int64_t tokens = 0;  // the first of the prompt
    Held state;          // null: it is in a file, or there is none
  };

  // max_bytes: of all states together; 0: nothing is kept.
  // files: where states are kept, too, and found again when memory has lost them; outlives this; null: nowhere.
  explicit PrefixCache(int64_t max_bytes, PrefixFiles* files = nullptr);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // A cache that holds as many of the prompt's first tokens as a stored state has of them, but never the last one, ready to
  // compute the rest: in every bit what computing them anew gives. Null: there is none.
  // parts_at: how many tokens it has in common with the prompts that were stored, though perhaps no state can be cut back
  // to there: a state left there serves the next one.
  // held: the state that the cache goes on from.
  // policy: that of the key. most: tokens that the cache shall hold at most.
  std::unique_ptr<SequenceCache> find(const std::string& key, const KvCachePolicy& policy, std::span<const int32_t> prompt,
                                      int64_t* parts_at = nullptr, Held* held = nullptr, int64_t most = INT64_MAX);

  // Lets go of states whose files were written since the last call, and forgets files that are gone.
  void collect_files();

  // The state counts as used.
  Covered covers(const std::string& key, std::span<const int32_t> prompt);
  // Prompts of one group are those that could have a state in common, and few others. A group's version is another one once
  // a state of theirs came or went; files that turn out to be gone do not count.
  static size_t group_of(const std::string& key, std::span<const int32_t> prompt);
  uint64_t version(size_t group) const { return versions_[group]; }

  // Keeps `state`, which holds `tokens`; tokens that are not committed make it serve prompts that part from it there, too;
  // of two states of the same tokens the one that can be cut back further stays. own_bytes: what it holds beyond the state that
  // it went on from. The least recently used go first to make room. Returns what is kept of these tokens; null: nothing.
  Held insert(const std::string& key, std::span<const int32_t> tokens, std::unique_ptr<SequenceCache> state, int64_t own_bytes);

  // Which states may be dropped: those that nobody is to go on from, or only one that lost its memory, and whose pages are
  // mostly nobody else's, though somebody who left them or went on from them may still run; those, too, that nobody runs
  // with, or most of whose bytes are nobody else's, unless they are owed to one of several; or any.
  enum class Evict : uint8_t { kUnheld, kOfUse, kAny };
  bool evict(Evict which);  // the one that was used least recently; false: there is none
  int64_t bytes() const { return bytes_; }
  int64_t n_states() const { return n_states_; }  // in memory

 private:
  struct Node;
  // A state, in the order of preference among those that share as many tokens with a prompt: the one of the fewest tokens, then
  // the last used.
  struct Rank {
    int64_t depth;
    uint64_t used;
    Node* node;
    bool operator==(const Rank&) const = default;
    bool operator<(const Rank& other) const { return depth != other.depth ? depth < other.depth : used > other.used; }
  };
  struct Node {
    std::vector<int32_t> edge;  // tokens from the parent to here
    int64_t depth = 0;          // tokens from the root to here
    size_t group = 0;           // of prompts; where there is a state
    Node* parent = nullptr;
    std::map<int32_t, std::unique_ptr<Node>> children;  // by the first token of their edges
    std::shared_ptr<State> state;                       // null: none in memory
    PrefixFiles::Name file;                             // empty: none
    int64_t committed = 0;                              // of the state in the file
    uint64_t used = 0;                                  // when, counted in uses
    std::optional<int64_t> listed;                      // committed tokens with which its state is in `best`
    uint64_t listed_used = 0;
    // By committed tokens, up to `depth`: its own state, and of each child the best one at and below it.
    std::map<int64_t, std::set<Rank>> best;
  };
  // Where a prompt's way through the tree may end: the states at and below `node`, but not below `next`, have its first n tokens.
  struct Parting {
    Node* node;
    int64_t n;
    const Node* next;
  };
  class Candidates;

  Node* node_of(const std::string& key, std::span<const int32_t> tokens);  // made where there is none
  bool load(Node* node, int64_t n_tokens, const KvCachePolicy& policy);  // its state from its file
  void hold(Node* node, std::shared_ptr<const SequenceCache> cache, int64_t own_bytes);
  void make_room();
  static bool leads_nowhere(const Node& node);
  void prune(Node* node);                                                // it and those above it that lead nowhere
  static void sweep(Node* node);                                         // what is below it and leads nowhere
  // The places where states may share kLeastTokens or more with the prompt, the most tokens first.
  static std::vector<Parting> partings(Node* root, std::span<const int32_t> prompt, int64_t* parts_at);
  static void list(Node* node);  // in `best`, after a change of its state, its file or its use
  static void replace(Node* node, int64_t committed, std::optional<Rank> before, std::optional<Rank> after);
  void use(Node* node);
  static bool may_go(const Node& node, Evict which);
  static Node* oldest(Node* node, Evict which);
  void drop(Node* node);

  int64_t max_bytes_;
  int64_t bytes_ = 0, n_states_ = 0;
  uint64_t clock_ = 0;
  std::vector<uint64_t> versions_;  // by group
  std::map<std::string, std::unique_ptr<Node>> roots_;  // by key
  PrefixFiles* files_;
  std::map<PrefixFiles::Name, Node*> by_file_;
};

}  // namespace smartkv

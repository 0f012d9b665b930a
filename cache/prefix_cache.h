// The prefix cache stores the caches of computed prompts for later prompts with the same beginning.
//
// It has one radix tree of states for each key. A key names a policy with its parameters and a group of clients that
// may share prompts. A state is a fork of a sequence's cache, in the format of its policy, so a compressed prefix costs
// compressed bytes. It shares its pages with the sequences that resume from it.
//
// Source: RadixAttention (SGLang, Zheng et al. 2024), applied to states that a policy can reproduce.
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

// Not thread-safe; the engine thread owns it.
class PrefixCache {
 public:
  // Length of the shortest prefix that is stored, in tokens. Computing a shorter one takes about as long as copying the
  // page that it would share.
  static constexpr int64_t kLeastTokens = 32;

  // A state in memory. A waiting sequence that will resume from it holds a reference, and so does a running sequence
  // that uses its pages. A held state can be evicted, too (see Evict); `cache` then becomes null.
  struct State {
    std::shared_ptr<const SequenceCache> cache;
    int64_t own_bytes = 0;  // its part of bytes(); see insert()
    // Reference counters. Running sequences that hold the state also hold `running`. Preempted sequences that will
    // resume from it also hold `owed`.
    std::shared_ptr<const bool> running = std::make_shared<bool>(true);
    std::shared_ptr<const bool> owed = std::make_shared<bool>(true);
  };
  using Held = std::shared_ptr<const State>;

  // The prefix that find() would most likely return.
  struct Covered {
    int64_t tokens = 0;  // length
    Held state;          // null if the state is in a file or does not exist
  };

  // Begins with the states found in `files`, which stay there until find() loads them.
  //  - max_bytes: limit of bytes(); 0 stores nothing.
  //  - files: a directory that stores states as well, so that they can be reloaded. Must outlive this object; may be
  //    null.
  explicit PrefixCache(int64_t max_bytes, PrefixFiles* files = nullptr);
  ~PrefixCache();
  PrefixCache(const PrefixCache&) = delete;
  PrefixCache& operator=(const PrefixCache&) = delete;

  // Returns a cache for the prompt that already holds the prompt's longest stored prefix, or null if there is none. It
  // equals a freshly computed cache bit for bit. The prompt's last token is never included, because its logits are
  // needed. May read a file, and may then evict other states to stay within max_bytes.
  //  - policy: the policy of the key.
  //  - diverges_at: receives the position at which the prompt diverges from all stored prompts. The returned cache may
  //    hold fewer tokens, because not every state can be cut back to that position. A state stored there helps the next
  //    prompt.
  //  - held: receives the state from which the cache resumes.
  //  - most: limit for the returned cache's tokens.
  std::unique_ptr<SequenceCache> find(const std::string& key, const KvCachePolicy& policy,
                                      std::span<const int32_t> prompt, int64_t* diverges_at = nullptr,
                                      Held* held = nullptr, int64_t most = INT64_MAX);

  // Releases the states that background writing has copied since the last call, and forgets files that are gone. find()
  // and insert() call it as well.
  void collect_files();

  // Looks up a prompt without loading anything. Marks the state as recently used. If it is in a file, the system begins
  // to read it, so that loading it overlaps with what runs until find().
  Covered covers(const std::string& key, std::span<const int32_t> prompt);
  // Returns the group of a prompt. Prompts that could use the same states are in one group. The version of a group
  // changes whenever one of its states in memory is added, replaced or evicted, but not when a file is lost.
  static size_t group_of(const std::string& key, std::span<const int32_t> prompt);
  uint64_t version(size_t group) const { return versions_[group]; }

  // Stores `state`, the cache of `tokens`, and evicts least recently used states to make room. REQUIRES:
  // state->tokens() is the number of `tokens`.
  //  - A state can be cut back to its committed tokens, so it also serves prompts that diverge after these.
  //  - If the cache already has a state of these tokens, it keeps the one that can be cut back further.
  //  - own_bytes: bytes that `state` does not share with the state from which its sequence resumed or that it stored
  //    last.
  //  - If there are files, the state is queued for background writing. If it is evicted before that, it gets no file.
  // Returns the stored state of these tokens. Returns null if they are fewer than kLeastTokens, if own_bytes exceeds
  // max_bytes, or if the state was evicted at once.
  Held insert(const std::string& key, std::span<const int32_t> tokens, std::unique_ptr<SequenceCache> state,
              int64_t own_bytes);

  // Which states evict() may drop. Each level includes the ones above it. A sequence *waits* for a state if it will
  // resume from it. A state is *unshared* if less than half of its bytes are shared with other caches.
  enum class Evict : uint8_t {
    // States of little use: those that no sequence holds, and unshared ones for which either no sequence waits or only
    // one that was preempted.
    kUnheld,
    // States of some use: also those that no running sequence uses, and all unshared ones, unless several sequences
    // wait for the state and one of them was preempted.
    kUnused,
    // Every state.
    kAny
  };
  bool evict(Evict which);  // drops the least recently used state of that kind; returns false if there is none
  int64_t bytes() const { return bytes_; }
  int64_t n_states() const { return n_states_; }  // in memory

 private:
  struct Node;
  // Order of preference among states that share equally many tokens with a prompt: the state with the fewest tokens
  // first; among equals, the most recently used.
  struct Rank {
    int64_t depth;
    uint64_t used;
    Node* node;
    bool operator==(const Rank&) const = default;
    bool operator<(const Rank& other) const { return depth != other.depth ? depth < other.depth : used > other.used; }
  };
  struct Node {
    std::vector<int32_t> edge;  // tokens between the parent and this node
    int64_t depth = 0;          // tokens between the root and this node
    size_t group = 0;           // group_of() its state
    Node* parent = nullptr;
    std::map<int32_t, std::unique_ptr<Node>> children;  // by the first token of their edges
    std::shared_ptr<State> state;                       // null if it is not in memory
    PrefixFiles::Name file;                             // empty if there is no file
    int64_t committed = 0;                              // committed tokens of the state in the file
    uint64_t used = 0;                                  // clock_ at the last use
    std::optional<int64_t> listed;                      // key of its state in `best`, here and in ancestors
    uint64_t listed_used = 0;                           // `used` at that time
    // By number of committed tokens, at most `depth`: this node's own state and the best one of each child's subtree.
    std::map<int64_t, std::set<Rank>> best;
  };
  // A place where a prompt's path can leave the tree: the states at and below `node`, but not below `next`, share
  // exactly the prompt's first n tokens.
  struct Parting {
    Node* node;
    int64_t n;
    const Node* next;
  };
  class Candidates;

  Node* node_of(const std::string& key, std::span<const int32_t> tokens);  // creates it if there is none
  bool load(Node* node, int64_t n_tokens, const KvCachePolicy& policy);    // loads its state from its file
  void hold(Node* node, std::shared_ptr<const SequenceCache> cache, int64_t own_bytes);
  void make_room();
  static bool leads_nowhere(const Node& node);
  void prune(Node* node);         // removes the node and its ancestors if they lead nowhere
  static void sweep(Node* node);  // removes the descendants that lead nowhere
  // Returns the places at which states share at least kLeastTokens tokens with the prompt, the longest prefix first.
  static std::vector<Parting> partings(Node* root, std::span<const int32_t> prompt, int64_t* diverges_at);
  static void list(Node* node);  // updates `best` along the path to the root after a change of state, file or use
  static void replace(Node* node, int64_t committed, std::optional<Rank> before, std::optional<Rank> after);
  void use(Node* node);
  static bool may_go(const Node& node, Evict which);
  static Node* oldest(Node* node, Evict which);
  void drop(Node* node);

  int64_t max_bytes_;
  int64_t bytes_ = 0, n_states_ = 0;
  uint64_t clock_ = 0;
  std::vector<uint64_t> versions_;                      // by group
  std::map<std::string, std::unique_ptr<Node>> roots_;  // by key
  PrefixFiles* files_;
  std::map<PrefixFiles::Name, Node*> by_file_;
};

}  // namespace smartkv

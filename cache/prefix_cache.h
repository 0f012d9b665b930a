// The prefix cache stores the caches of computed prompts for later prompts with the same beginning.
//
// It has one radix tree of states for each key. A key names a policy with its parameters and a group of clients that
// may share prompts. A state is a fork of a sequence's cache, in the format of its policy, so a compressed prefix costs
// compressed bytes. It shares its pages with the sequences that resume from it.
//
// If memory runs out, the state of the lowest value is evicted. The value is
//    work that only this state saves / bytes that evicting it frees * uses of it per tick,
// as in GreedyDual-Size-Frequency (Cherkasova 1998), with uses per tick that ReuseModel learns.
//  - Work grows with the square of a prompt's length, so the ends of long prompts are worth more per token.
//  - A state saves only what the next shorter state on its path does not, and frees only what no other cache shares. So
//    a long session loses its latest turns first if its earlier states are stored, and shared prefixes stay.
//  - If a session's latest state is evicted, and has no file, the next shorter one takes over its expected uses.
//
// Sources: RadixAttention (SGLang, Zheng et al. 2024), applied to states that a policy can reproduce.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "cache/policy.h"
#include "cache/prefix_files.h"
#include "cache/prefix_listing.h"
#include "cache/reuse_model.h"
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

  // Why a prompt was computed although a stored state could have saved it.
  enum class Miss : uint8_t {
    kNone,         // the whole prompt was found
    kNeverStored,  // no stored prompt shares more tokens than were found
    kEvicted,      // a state that was evicted would have saved more
    kPolicy,       // states that share more tokens cannot be cut back that far, or are of another KV-cache policy
    kSalt,         // a state that is stored without a salt would have saved more; the request has one
  };
  static constexpr const char* kMissNames[] = {"none", "never_stored", "evicted", "policy", "salt"};

  // What the prefix cache knows about a request. It lives as long as the request.
  struct Lookup {
    // What the engine fills in. Requests of one group share what is learned about first turns. Without an owner or with
    // a limit of 0 bytes, the states may take all memory.
    std::string group, owner;
    int64_t owner_bytes = 0;
    Retention retention;
    // What the first look-up fills in.
    std::shared_ptr<Turn> turn;  // for insert()
    int64_t common = 0;          // tokens that the prompt shares with the nearest prompt that is or was stored
    Miss miss = Miss::kNone;
  };

  // The prefix that find() would most likely return.
  struct Covered {
    int64_t tokens = 0;  // length
    Held state;          // null if the state is in a file or does not exist
  };

  // A state that could be evicted, and what its value is made of.
  struct Candidate {
    const SequenceCache* cache;
    double work;    // of computing what only this state saves, in tokens without context
    int64_t bytes;  // that evicting it frees
    double rate;    // expected uses per tick
    uint64_t used;  // order of the last uses
  };
  // Returns the value of a state. The state of the lowest value is evicted first.
  using Rule = std::function<double(const Candidate&)>;
  static double value(const Candidate& of) {
    return of.work * of.rate / static_cast<double>(std::max<int64_t>(1, of.bytes));
  }

  // Begins with the states found in `files`, which stay there until find() loads them.
  //  - max_bytes: limit of bytes(); 0 stores nothing.
  //  - files: a directory that stores states as well, so that they can be reloaded. Must outlive this object; may be
  //    null.
  //  - attention_tokens: length of context whose attention costs as much as the matrix products of one token.
  //  - rule: tests compare others with value().
  explicit PrefixCache(int64_t max_bytes, PrefixFiles* files = nullptr, int64_t attention_tokens = INT64_MAX,
                       Rule rule = value);
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
  //  - lookup: of the request. Its first look-up counts as a use and fills it in. May be null.
  std::unique_ptr<SequenceCache> find(const std::string& key, const KvCachePolicy& policy,
                                      std::span<const int32_t> prompt, int64_t* diverges_at = nullptr,
                                      Held* held = nullptr, int64_t most = INT64_MAX, Lookup* lookup = nullptr);

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

  // Stores `state`, the cache of `tokens`, and evicts states to make room. REQUIRES: state->tokens() is the number of
  // `tokens`.
  //  - A state can be cut back to its committed tokens, so it also serves prompts that diverge after these.
  //  - If the cache already has a state of these tokens, it keeps the one that can be cut back further.
  //  - own_bytes: bytes that `state` does not share with the state from which its sequence resumed or that it stored
  //    last.
  //  - turn: of the request that leaves the state; null stands for a new one.
  //  - If there are files, the state is queued for background writing. If it is evicted before that, it gets no file.
  // Returns the stored state of these tokens. Returns null if they are fewer than kLeastTokens, if own_bytes exceeds
  // max_bytes, or if the state was evicted at once.
  Held insert(const std::string& key, std::span<const int32_t> tokens, std::unique_ptr<SequenceCache> state,
              int64_t own_bytes, std::shared_ptr<Turn> turn = nullptr);

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
  bool evict(Evict which);  // drops the state of that kind with the lowest value; returns false if there is none
  // Lists up to `most` states, the most valuable first, those in files last.
  std::vector<PrefixListing> list_states(size_t most);
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
    uint64_t hash = 0;                                  // of key and tokens, if it has or had a state
    Reuse reuse;                                        // of the state
    // History of a longer state that was evicted. The next request of its conversation will resume from this one.
    std::optional<Reuse> stands_for;
    size_t stored_at = 0;           // index in stored_, if the state is in memory
    int64_t freed = 0;              // bytes that evicting it freed when last measured
    uint64_t used = 0;              // clock_ at the last use
    std::optional<int64_t> listed;  // key of its state in `best`, here and in ancestors
    uint64_t listed_used = 0;       // `used` at that time
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
  // A state that was evicted. It helps to learn when states are used, at a fixed cost: it has no tokens.
  struct Ghost {
    int64_t depth;
    Reuse reuse;
  };
  // The most ghosts. The most states whose bytes are measured, and the most ghosts whose ages are counted, at once.
  static constexpr size_t kMostGhosts = 8192;
  static constexpr size_t kMostMeasured = 64;
  // A state in the heap of candidates. The one with the lowest value is on top; among equals, the least recently used.
  struct Ranked {
    double value;
    uint64_t used;
    Node* node;
    bool operator<(const Ranked& other) const { return value != other.value ? value > other.value : used > other.used; }
  };

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
  static int64_t waiting(const Node& node);     // sequences that will resume from its state
  static Node* stored_above(const Node& node);  // the longest state in memory that is shorter, on its path; or null
  void measure(Node* node);                     // updates `freed`
  Ranked ranked(Node* node);
  void rank();                  // fills order_
  void reconsider(Node* node);  // moves it in order_ if its value has fallen; evict() sees if it has risen
  double rate(Node* node);      // expected uses of its state per tick
  void drop(Node* node);
  // Lets the next shorter state stand for its state, which is evicted. From a file, it could be used again itself.
  void hand_down(Node* node);
  void keep_likelier(std::optional<Reuse>* kept, std::optional<Reuse> other);  // drops those that are no longer awaited

  // Counts the use of `from`, the state or null from which a prompt resumes after n tokens, or of a longer one that was
  // evicted. Fills in `lookup`. If prompts diverge at a state that was evicted, sets *diverges_at so that it is stored
  // again.
  void learn(const std::string& key, std::span<const int32_t> prompt, Node* from, int64_t n, int64_t* diverges_at,
             Lookup* lookup);
  std::shared_ptr<Turn> turn_of(const std::string& key, const std::string& group, Node* from, int64_t n,
                                int64_t diverges_at);
  // Returns how many tokens a prompt shares with the stored prompts of a key.
  int64_t common(const std::string& key, std::span<const int32_t> prompt) const;
  // Returns why nothing longer than n tokens was found. `common` is what the key's stored prompts share.
  Miss why_missed(const std::string& key, std::span<const int32_t> prompt, int64_t n, int64_t common) const;
  static void charge(const Node& node, int64_t bytes);  // adds bytes of its state to those of its owner
  std::shared_ptr<Owner> owner_of(const Lookup& lookup);
  void keep_within(Owner* owner);  // evicts states of an owner until they are within its limit
  void bury(Node* node);           // makes a ghost of its state
  void forget(uint64_t hash);      // removes a ghost
  // Returns the hash of the longest ghost that is a prefix of the prompt and has more than n tokens, if there is one.
  std::optional<uint64_t> ghost_of(const std::string& key, std::span<const int32_t> prompt, int64_t n) const;

  int64_t max_bytes_;
  int64_t bytes_ = 0, n_states_ = 0;
  uint64_t clock_ = 0;
  std::vector<uint64_t> versions_;                      // by group
  std::map<std::string, std::unique_ptr<Node>> roots_;  // by key
  PrefixFiles* files_;
  std::map<PrefixFiles::Name, Node*> by_file_;

  int64_t attention_tokens_;
  Rule rule_;
  ReuseModel reuse_;
  std::map<std::string, std::shared_ptr<Owner>> owners_;
  std::chrono::steady_clock::time_point now_;  // when states were last ranked
  std::vector<Node*> stored_;                  // nodes with a state in memory
  // Indices in stored_ of the state that was measured last, and in buried_ of the ghost that was counted last.
  size_t measured_ = 0, counted_ = 0;
  std::vector<Ranked> order_;                   // heap of the states in memory; see ranked_
  bool ranked_ = false;                         // whether order_ has every state, at a value that it had in this tick
  std::vector<Ranked> passed_over_;             // scratch of evict()
  std::unordered_map<uint64_t, Ghost> ghosts_;  // by Node::hash
  // Requests that share no stored prefix, by a hash of their keys.
  std::vector<std::shared_ptr<Branch>> begun_;
  std::deque<uint64_t> buried_;              // their hashes, oldest first; some may be gone
  std::map<int64_t, int64_t> ghost_depths_;  // number of ghosts by depth
};

}  // namespace smartkv

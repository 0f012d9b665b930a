#include "cache/prefix_cache.h"

#include <algorithm>
#include <queue>
#include <unordered_set>
#include <utility>

#include "cache/state_io.h"

namespace smartkv {
namespace {

constexpr size_t kGroups = 1024;

// Returns how many leading tokens two runs have in common.
int64_t in_common(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return end - a.begin();
}

// Returns a fork of the state as the cache of a prompt of prompt_tokens tokens that begins with the state's first n
// tokens. The fork is cut back to these tokens, or to one less at a boundary. Null if it cannot be cut back that far,
// or if its policy cannot resume it.
std::unique_ptr<SequenceCache> cut_back(const SequenceCache& state, int64_t n, int64_t prompt_tokens) {
  if (n == state.next_boundary()) --n;  // Committing at the boundary would compress.
  if (n < std::max(state.committed(), PrefixCache::kLeastTokens)) return nullptr;
  const std::unique_ptr<SequenceCache> cut = state.fork();
  if (n < cut->tokens()) cut->truncate(n);
  cut->commit(n);
  return cut->resume(prompt_tokens);
}

uint64_t hash_of(const std::string& key) { return std::hash<std::string>{}(key) | 1; }

// Returns the hash of one token more than `hash` covers.
uint64_t extend(uint64_t hash, int32_t token) {
  hash =
      (hash ^ static_cast<uint32_t>(token)) * 0x9e3779b97f4a7c15;  // 2^64 over the golden ratio, as Fibonacci hashing
  return hash ^ hash >> 32;
}

uint64_t hash_of(const std::string& key, std::span<const int32_t> tokens) {
  uint64_t hash = hash_of(key);
  for (const int32_t token : tokens) hash = extend(hash, token);
  return hash;
}

}  // namespace

PrefixCache::PrefixCache(int64_t max_bytes, PrefixFiles* files, int64_t attention_tokens, Rule rule)
    : max_bytes_(max_bytes),
      versions_(kGroups, 1),
      files_(files),
      attention_tokens_(attention_tokens),
      rule_(std::move(rule)),
      begun_(kGroups) {
  for (auto& branch : begun_) branch = std::make_shared<Branch>();
  if (files == nullptr) return;
  for (auto& [name, record] : files->take_found()) {
    if (static_cast<int64_t>(record.tokens.size()) < kLeastTokens) continue;
    Node* node = node_of(record.key, record.tokens);
    by_file_[name] = node;
    node->file = name;
    node->committed = record.committed;
    node->group = group_of(record.key, record.tokens);
    node->hash = hash_of(record.key, record.tokens);
    node->reuse = reuse_.begin(std::make_shared<Turn>(), node->depth);
    use(node);
  }
}

PrefixCache::~PrefixCache() = default;

// Enumerates the states from which a prompt's first tokens may be taken: the states at partings[0] first, then the ones
// at the next parting, each in the order of Rank. Committed tokens of a state cannot be cut back, so a candidate has no
// more of them than it shares with the prompt, and no more than `most`. Invalid after a change of the tree.
class PrefixCache::Candidates {
 public:
  struct Candidate {
    Node* node;
    int64_t n;
  };
  Candidates(std::span<const Parting> partings, int64_t most) : partings_(partings), most_(most) {}

  // Returns the next candidate. Nullopt if there are no more.
  std::optional<Candidate> next() {
    while (true) {
      if (open_.empty()) {
        if (at_ == partings_.size()) return std::nullopt;
        push_all(partings_[at_++]);
        continue;
      }
      const Item item = open_.top();
      open_.pop();
      const Node* const owner = item.owner;
      const std::set<Rank>& ranks = owner->best.at(item.committed);
      if (const auto after = std::next(item.rank); after != ranks.end()) open_.push({after, owner, item.committed});
      const Parting& parting = partings_[at_ - 1];
      Node* const node = item.rank->node;
      if (node == owner) return Candidate{node, parting.n};
      const Node* child = node;  // Becomes the child of `owner` above `node`.
      while (child->parent != owner) child = child->parent;
      // States below parting.next share more tokens with the prompt, so an earlier parting has offered them.
      if (owner == parting.node && child == parting.next) continue;
      open_.push({child->best.at(item.committed).begin(), child, item.committed});
    }
  }

 private:
  struct Item {
    std::set<Rank>::const_iterator rank;
    const Node* owner;
    int64_t committed;
    bool operator<(const Item& other) const { return *other.rank < *rank; }  // The best is on top.
  };
  void push_all(const Parting& parting) {
    for (const auto& [committed, ranks] : parting.node->best) {
      if (committed > std::min(parting.n, most_)) break;
      open_.push({ranks.begin(), parting.node, committed});
    }
  }

  std::span<const Parting> partings_;
  int64_t most_;
  size_t at_ = 0;
  std::priority_queue<Item> open_;
};

size_t PrefixCache::group_of(const std::string& key, std::span<const int32_t> prompt) {
  const std::span<const int32_t> first = prompt.first(std::min<size_t>(prompt.size(), kLeastTokens));
  const std::string_view bytes(reinterpret_cast<const char*>(first.data()), first.size_bytes());
  return (std::hash<std::string_view>{}(bytes) ^ std::hash<std::string>{}(key)) % kGroups;
}

// If memory runs out on the way up, the nodes above lack the state, and find() misses it. No node ever lists a state
// that is gone.
void PrefixCache::replace(Node* node, int64_t committed, std::optional<Rank> before, std::optional<Rank> after) {
  for (; node != nullptr && node->depth >= committed && before != after; node = node->parent) {
    auto ranks = node->best.find(committed);
    const auto best = [&] {
      return ranks == node->best.end() || ranks->second.empty() ? std::nullopt
                                                                : std::optional<Rank>(*ranks->second.begin());
    };
    const std::optional<Rank> best_before = best();
    std::set<Rank>::node_type rank;  // Moved within the set, which allocates nothing.
    if (before && ranks != node->best.end()) rank = ranks->second.extract(*before);
    if (after) {
      if (!rank.empty()) {
        rank.value() = *after;
        ranks->second.insert(std::move(rank));
      } else if (ranks != node->best.end()) {
        ranks->second.insert(*after);
      } else {
        ranks = node->best.emplace(committed, std::set<Rank>{*after}).first;
      }
    }
    const std::optional<Rank> best_after = best();
    if (!best_after && ranks != node->best.end()) node->best.erase(ranks);
    before = best_before;
    after = best_after;
  }
}

void PrefixCache::list(Node* node) {
  const bool exists = node->state != nullptr || !node->file.empty();
  const std::optional<int64_t> before = node->listed;
  const std::optional<Rank> rank_before =
      before ? std::optional<Rank>({node->depth, node->listed_used, node}) : std::nullopt;
  node->listed.reset();
  if (exists) node->listed = node->state != nullptr ? node->state->cache->committed() : node->committed;
  node->listed_used = node->used;
  const std::optional<Rank> rank = exists ? std::optional<Rank>({node->depth, node->used, node}) : std::nullopt;
  if (before == node->listed) {
    if (before) replace(node, *before, rank_before, rank);
    return;
  }
  if (before) replace(node, *before, rank_before, std::nullopt);
  if (exists) replace(node, *node->listed, std::nullopt, rank);
}

void PrefixCache::use(Node* node) {
  node->used = ++clock_;
  list(node);
}

std::vector<PrefixCache::Parting> PrefixCache::partings(Node* node, std::span<const int32_t> prompt,
                                                        int64_t* diverges_at) {
  const auto most = static_cast<int64_t>(prompt.size()) - 1;
  std::vector<Parting> result;
  for (int64_t n = 0; node != nullptr;) {
    const auto child = n < most ? node->children.find(prompt[static_cast<size_t>(n)]) : node->children.end();
    Node* const next = child == node->children.end() ? nullptr : child->second.get();
    if (n >= kLeastTokens) result.push_back({node, n, next});
    if (next == nullptr) break;
    const int64_t same = in_common(prompt.subspan(static_cast<size_t>(n), static_cast<size_t>(most - n)), next->edge);
    n += same;
    *diverges_at = n;
    node = next;
    if (same == static_cast<int64_t>(next->edge.size())) continue;
    if (n >= kLeastTokens) result.push_back({next, n, nullptr});
    break;
  }
  std::reverse(result.begin(), result.end());
  return result;
}

PrefixCache::Covered PrefixCache::covers(const std::string& key, std::span<const int32_t> prompt) {
  const auto root = roots_.find(key);
  if (root == roots_.end()) return {};
  int64_t diverges_at = 0;
  const std::vector<Parting> places = partings(root->second.get(), prompt, &diverges_at);
  const auto best = Candidates(places, INT64_MAX).next();
  if (!best) return {};
  use(best->node);
  if (best->node->state == nullptr) files_->prefetch(best->node->file);
  return {best->n, best->node->state};
}

std::unique_ptr<SequenceCache> PrefixCache::find(const std::string& key, const KvCachePolicy& policy,
                                                 std::span<const int32_t> prompt, int64_t* diverges_at, Held* held,
                                                 int64_t most, Lookup* lookup) {
  int64_t parts = 0;
  if (diverges_at == nullptr) diverges_at = &parts;
  *diverges_at = 0;
  collect_files();
  const bool learns = lookup != nullptr && lookup->turn == nullptr;
  const auto root = roots_.find(key);
  if (root == roots_.end()) {
    if (learns) learn(key, prompt, nullptr, 0, diverges_at, lookup);
    return nullptr;
  }
  std::unique_ptr<SequenceCache> cache;
  Node* from = nullptr;
  int64_t n = 0;
  bool swept = true;
  const std::vector<Parting> places = partings(root->second.get(), prompt, diverges_at);
  std::unordered_set<const Node*> tried;
  Candidates candidates(places, most);
  while (const auto candidate = candidates.next()) {
    Node* of = candidate->node;
    if (!tried.insert(of).second) continue;
    if (of->state == nullptr) {
      const bool loaded = load(of, of->depth, policy);
      candidates = Candidates(places, most);  // load() changed the tree.
      if (!loaded) {
        swept = false;
        continue;
      }
    }
    cache = cut_back(*of->state->cache, std::min(candidate->n, most), static_cast<int64_t>(prompt.size()));
    if (cache == nullptr) continue;
    use(of);
    from = of;
    n = candidate->n;
    if (held != nullptr) *held = of->state;
    break;
  }
  if (learns) learn(key, prompt, from, n, diverges_at, lookup);
  if (!swept) {
    sweep(root->second.get());
    prune(root->second.get());
  }
  make_room();
  return cache;
}

bool PrefixCache::load(Node* node, int64_t n_tokens, const KvCachePolicy& policy) {
  const std::optional<std::string> bytes = files_->read(node->file);
  std::unique_ptr<SequenceCache> state;
  if (bytes) {
    try {
      StateReader in(*bytes);
      state = policy.load(&in);
      in.expect(in.left() == 0 && state->tokens() == n_tokens, "a state of exactly these tokens");
    } catch (const CacheError& problem) {
      state = nullptr;
      files_->skip(node->file, problem.what());
    }
  }
  if (state == nullptr) {
    by_file_.erase(node->file);
    node->file.clear();
    list(node);
    return false;
  }
  const int64_t own_bytes = state->stats().bytes;
  hold(node, std::move(state), own_bytes);
  charge(*node, own_bytes);
  use(node);
  return true;
}

void PrefixCache::hold(Node* node, std::shared_ptr<const SequenceCache> cache, int64_t own_bytes) {
  if (node->state == nullptr) {
    auto state = std::make_shared<State>();
    if (stored_.size() == stored_.capacity()) {  // Evicting must not need memory.
      const size_t more = 2 * stored_.size() + 16;
      order_.reserve(more);
      passed_over_.reserve(more);
      stored_.reserve(more);
    }
    node->stored_at = stored_.size();
    stored_.push_back(node);
    node->state = std::move(state);
    ++n_states_;
  }
  node->freed = own_bytes;
  ranked_ = false;
  bytes_ += own_bytes - node->state->own_bytes;
  node->state->cache = std::move(cache);
  node->state->own_bytes = own_bytes;
  ++versions_[node->group];
}

void PrefixCache::collect_files() {
  if (files_ == nullptr) return;
  for (const PrefixFiles::Name& name : files_->collect()) {
    const auto found = by_file_.find(name);
    if (found == by_file_.end()) continue;
    Node* node = found->second;
    by_file_.erase(found);
    node->file.clear();
    list(node);
    prune(node);
  }
}

// Allocates all memory for a change before it changes the tree.
PrefixCache::Node* PrefixCache::node_of(const std::string& key, std::span<const int32_t> tokens) {
  auto root = roots_.find(key);
  if (root == roots_.end()) root = roots_.emplace(key, std::make_unique<Node>()).first;
  Node* node = root->second.get();
  while (!tokens.empty()) {
    const auto found = node->children.find(tokens[0]);
    if (found == node->children.end()) {
      auto leaf = std::make_unique<Node>();
      leaf->edge.assign(tokens.begin(), tokens.end());
      leaf->parent = node;
      leaf->depth = node->depth + static_cast<int64_t>(tokens.size());
      node = node->children.emplace(tokens[0], std::move(leaf)).first->second.get();
      break;
    }
    std::unique_ptr<Node>& child = found->second;
    const int64_t same = in_common(tokens, child->edge);
    if (same < static_cast<int64_t>(child->edge.size())) {  // The tokens diverge in the middle of the edge.
      auto middle = std::make_unique<Node>();
      middle->edge.assign(child->edge.begin(), child->edge.begin() + same);
      middle->parent = node;
      middle->depth = node->depth + same;
      for (const auto& [committed, ranks] : child->best) {
        if (committed <= middle->depth) middle->best[committed].insert(*ranks.begin());
      }
      std::unique_ptr<Node>& below = middle->children[child->edge[static_cast<size_t>(same)]];
      child->edge.erase(child->edge.begin(), child->edge.begin() + same);
      child->parent = middle.get();
      below = std::move(child);
      child = std::move(middle);
    }
    node = child.get();
    tokens = tokens.subspan(static_cast<size_t>(same));
  }
  return node;
}

PrefixCache::Held PrefixCache::insert(const std::string& key, std::span<const int32_t> tokens,
                                      std::unique_ptr<SequenceCache> state, int64_t own_bytes,
                                      std::shared_ptr<Turn> turn) {
  collect_files();
  own_bytes = std::max<int64_t>(0, own_bytes);
  if (own_bytes > max_bytes_ || static_cast<int64_t>(tokens.size()) < kLeastTokens) return nullptr;
  Node* node = node_of(key, tokens);
  node->group = group_of(key, tokens);
  use(node);
  // Whether nothing is stored for these tokens yet, or the new state can be cut back further than the stored one.
  const bool better = node->state == nullptr ? node->file.empty() || node->committed > state->committed()
                                             : node->state->cache->committed() > state->committed();
  if (node->state != nullptr && !better) return node->state;
  const std::shared_ptr<const SequenceCache> cache(std::move(state));
  if (turn == nullptr) turn = std::make_shared<Turn>();
  if (node->state != nullptr) charge(*node, -node->state->own_bytes);
  node->hash = hash_of(key, tokens);
  node->reuse = reuse_.begin(turn, node->depth);
  if (const auto ghost = ghosts_.find(node->hash); ghost != ghosts_.end()) {
    if (ghost->second.reuse.branch != nullptr) node->reuse = ghost->second.reuse;
    node->reuse.turn = turn;
    forget(node->hash);
  }
  hold(node, cache, own_bytes);
  charge(*node, own_bytes);
  if (Node* shorter = stored_above(*node); shorter != nullptr && shorter->reuse.turn == turn) {
    reuse_.set_inner(&shorter->reuse);
  }
  list(node);
  if (files_ != nullptr && better && cache->save(nullptr)) {
    const PrefixRecord record{key, {tokens.begin(), tokens.end()}, cache->committed(), own_bytes};
    if (auto name = files_->write(record, cache)) {
      by_file_[*name] = node;
      node->file = std::move(*name);
      node->committed = cache->committed();
    }
  }
  // A weak reference does not count as a holder, so make_room() may drop even this state.
  const std::weak_ptr<const State> kept = node->state;
  if (turn->owner != nullptr && turn->owner->bytes > turn->owner->limit) keep_within(turn->owner.get());
  make_room();
  return kept.lock();
}

void PrefixCache::charge(const Node& node, int64_t bytes) {
  if (node.reuse.turn->owner != nullptr) node.reuse.turn->owner->bytes += bytes;
}

void PrefixCache::make_room() {
  while (bytes_ > max_bytes_ && (evict(Evict::kUnheld) || evict(Evict::kUnused) || evict(Evict::kAny))) {
  }
}

// A sequence that runs with the state's pages holds `running` as well. The other holders wait to resume from it.
int64_t PrefixCache::waiting(const Node& node) { return node.state.use_count() - node.state->running.use_count(); }

bool PrefixCache::may_go(const Node& node, Evict which) {
  if (node.state == nullptr) return false;
  if (which == Evict::kAny || node.state.use_count() == 1) return true;
  const bool owed = node.state->owed.use_count() > 1;
  // A preempted sequence also loses a state that only it wants: while it waits, other sequences run with those bytes.
  const bool wanted = waiting(node) > (owed ? 1 : 0);
  if (which == Evict::kUnheld && wanted) return false;
  if (which == Evict::kUnused && wanted && owed) return false;
  if (which == Evict::kUnused && node.state->running.use_count() == 1) return true;
  const CacheStats stats = node.state->cache->stats();
  return stats.bytes > 2 * stats.shared_bytes;
}

PrefixCache::Node* PrefixCache::stored_above(const Node& node) {
  Node* above = node.parent;
  while (above != nullptr && above->state == nullptr) above = above->parent;
  return above;
}

void PrefixCache::measure(Node* node) {
  const CacheStats stats = node->state->cache->stats();
  node->freed = stats.bytes - stats.shared_bytes;
}

PrefixCache::Ranked PrefixCache::ranked(Node* node) {
  const auto work = [this](int64_t tokens) {
    const auto n = static_cast<double>(tokens);
    return n + n * n / 2 / static_cast<double>(attention_tokens_);
  };
  const Node* const above = stored_above(*node);
  // Sequences that wait for the state use it at the next tick.
  const int64_t soon = waiting(*node);
  const Candidate of = {node->state->cache.get(), work(node->depth) - (above == nullptr ? 0 : work(above->depth)),
                        node->freed, soon > 0 ? static_cast<double>(soon) : rate(node), node->used};
  return {rule_(of) * node->reuse.turn->retention.weight_at(now_), node->used, node};
}

double PrefixCache::rate(Node* node) {
  double result = reuse_.rate(&node->reuse);
  if (node->stands_for && !ReuseModel::is_awaited(*node->stands_for)) node->stands_for.reset();
  if (node->stands_for) result += reuse_.rate(&*node->stands_for);
  return result;
}

void PrefixCache::rank() {
  now_ = std::chrono::steady_clock::now();
  for (size_t i = 0; i < std::min(kMostMeasured, stored_.size()); ++i) {
    measured_ = measured_ + 1 < stored_.size() ? measured_ + 1 : 0;
    measure(stored_[measured_]);
  }
  for (size_t i = 0; i < std::min(kMostMeasured, buried_.size()); ++i) {
    counted_ = counted_ + 1 < buried_.size() ? counted_ + 1 : 0;
    if (const auto ghost = ghosts_.find(buried_[counted_]); ghost != ghosts_.end()) reuse_.count(&ghost->second.reuse);
  }
  order_.clear();
  for (Node* node : stored_) order_.push_back(ranked(node));
  std::make_heap(order_.begin(), order_.end());
  ranked_ = true;
}

void PrefixCache::reconsider(Node* node) {
  const auto at = std::ranges::find(order_, node, &Ranked::node);
  if (at == order_.end()) return;
  measure(node);
  const Ranked now = ranked(node);
  if (*at < now) {  // The value has fallen, so the state rises in the heap. The rest of the heap does not change.
    *at = now;
    std::push_heap(order_.begin(), at + 1);
  }
}

bool PrefixCache::evict(Evict which) {
  if (!ranked_) rank();
  passed_over_.clear();
  Node* found = nullptr;
  while (found == nullptr && !order_.empty()) {
    std::pop_heap(order_.begin(), order_.end());
    Ranked& lowest = order_.back();
    if (!may_go(*lowest.node, which)) {
      passed_over_.push_back(lowest);
      order_.pop_back();
      continue;
    }
    measure(lowest.node);
    lowest = ranked(lowest.node);
    if (order_.size() > 1 && lowest < order_.front()) {  // its value has risen
      std::push_heap(order_.begin(), order_.end());
      continue;
    }
    found = lowest.node;
    order_.pop_back();
  }
  for (const Ranked& other : passed_over_) {
    order_.push_back(other);
    std::push_heap(order_.begin(), order_.end());
  }
  if (found == nullptr) return false;
  Node* const above = stored_above(*found);
  drop(found);
  if (above != nullptr) reconsider(above);
  return true;
}

void PrefixCache::drop(Node* node) {
  bury(node);
  stored_[node->stored_at] = stored_.back();
  stored_[node->stored_at]->stored_at = node->stored_at;
  stored_.pop_back();
  charge(*node, -node->state->own_bytes);
  bytes_ -= node->state->own_bytes;
  --n_states_;
  ++versions_[node->group];
  if (!node->file.empty() && files_->cancel(node->file)) {
    by_file_.erase(node->file);
    node->file.clear();
  }
  hand_down(node);
  node->state->cache.reset();  // Other holders of the state lose its cache, too.
  node->state.reset();
  list(node);
  prune(node);
}

void PrefixCache::hand_down(Node* node) {
  std::optional<Reuse> awaited = ReuseModel::awaited(node->reuse);
  keep_likelier(&awaited, std::exchange(node->stands_for, std::nullopt));
  Node* const shorter = stored_above(*node);
  if (shorter != nullptr && node->file.empty()) keep_likelier(&shorter->stands_for, std::move(awaited));
}

void PrefixCache::keep_likelier(std::optional<Reuse>* kept, std::optional<Reuse> other) {
  for (std::optional<Reuse>* each : {kept, &other}) {
    if (*each && !ReuseModel::is_awaited(**each)) each->reset();
  }
  if (other && (!*kept || reuse_.rate(&**kept) < reuse_.rate(&*other))) *kept = std::move(other);
}

void PrefixCache::bury(Node* node) {
  reuse_.count(&node->reuse);
  try {
    ++ghost_depths_[node->depth];
    buried_.push_back(node->hash);
    if (const auto ghost = ghosts_.find(node->hash); ghost != ghosts_.end()) forget(node->hash);
    ghosts_.emplace(node->hash, Ghost{node->depth, node->reuse});
  } catch (const std::bad_alloc&) {  // Evicting needs no memory. The model only learns less.
    return;
  }
  while (buried_.size() > kMostGhosts) {
    forget(buried_.front());
    buried_.pop_front();
  }
}

void PrefixCache::forget(uint64_t hash) {
  const auto ghost = ghosts_.find(hash);
  if (ghost == ghosts_.end()) return;
  reuse_.count(&ghost->second.reuse);
  const auto depth = ghost_depths_.find(ghost->second.depth);
  if (--depth->second == 0) ghost_depths_.erase(depth);
  ghosts_.erase(ghost);
}

std::optional<uint64_t> PrefixCache::ghost_of(const std::string& key, std::span<const int32_t> prompt,
                                              int64_t n) const {
  std::optional<uint64_t> found;
  uint64_t hash = hash_of(key);
  int64_t at = 0;
  for (const auto& [depth, count] : ghost_depths_) {
    if (depth >= static_cast<int64_t>(prompt.size())) break;
    while (at < depth) hash = extend(hash, prompt[static_cast<size_t>(at++)]);
    if (depth > n && ghosts_.contains(hash)) found = hash;
  }
  return found;
}

void PrefixCache::learn(const std::string& key, std::span<const int32_t> prompt, Node* from, int64_t n,
                        int64_t* diverges_at, Lookup* lookup) {
  reuse_.tick();
  ranked_ = false;
  lookup->common = std::max(n, *diverges_at);
  lookup->miss = why_missed(key, prompt, n, *diverges_at);
  const bool whole = from == nullptr || n == from->depth;
  if (const auto hash = ghost_of(key, prompt, whole ? n : n - 1)) {
    Ghost& ghost = ghosts_.at(*hash);
    lookup->turn = reuse_.use(&ghost.reuse);
    if (ghost.reuse.branch != nullptr) *diverges_at = std::max(*diverges_at, ghost.depth);
    if (ghost.depth > n) lookup->miss = Miss::kEvicted;
    lookup->common = std::max(lookup->common, ghost.depth);
  } else {
    lookup->turn = turn_of(key, lookup->group, from, n, *diverges_at);
  }
  lookup->turn->retention = lookup->retention;
  lookup->turn->owner = owner_of(*lookup);
}

std::shared_ptr<Turn> PrefixCache::turn_of(const std::string& key, const std::string& group, Node* from, int64_t n,
                                           int64_t diverges_at) {
  std::shared_ptr<Turn> turn;
  if (from != nullptr && n == from->depth) {
    turn = reuse_.use(&from->reuse);
  } else if (from != nullptr) {
    turn = reuse_.diverge(&from->reuse, static_cast<double>(n) / static_cast<double>(from->depth), diverges_at);
  } else {
    turn = std::make_shared<Turn>();
    turn->branch = begun_[hash_of(key) % begun_.size()];
    turn->diverges_at = diverges_at;
  }
  if (turn->branch != nullptr && !group.empty()) turn->branch = begun_[hash_of(key + '\n' + group) % begun_.size()];
  return turn;
}

std::shared_ptr<Owner> PrefixCache::owner_of(const Lookup& lookup) {
  if (lookup.owner_bytes == 0) return nullptr;
  auto owner = owners_.find(lookup.owner);
  if (owner == owners_.end()) {
    std::erase_if(owners_, [](const auto& other) { return other.second.use_count() == 1; });  // they have no states
    owner = owners_.emplace(lookup.owner, std::make_shared<Owner>()).first;
  }
  owner->second->limit = lookup.owner_bytes;
  return owner->second;
}

int64_t PrefixCache::common(const std::string& key, std::span<const int32_t> prompt) const {
  const auto root = roots_.find(key);
  int64_t tokens = 0;
  if (root != roots_.end()) partings(root->second.get(), prompt, &tokens);
  return tokens;
}

// A request with a salt learns what is stored without one, which it could ask for without its salt. It learns nothing
// about other salts.
PrefixCache::Miss PrefixCache::why_missed(const std::string& key, std::span<const int32_t> prompt, int64_t n,
                                          int64_t common_tokens) const {
  const auto more = [n](int64_t tokens) { return tokens >= n + kLeastTokens; };
  if (n + 1 >= static_cast<int64_t>(prompt.size())) return Miss::kNone;
  if (more(common_tokens)) return Miss::kPolicy;
  const size_t policy = key.find('\n') + 1;  // keys without a salt end there
  const std::string_view salt = std::string_view(key).substr(policy);
  for (const auto& [other, root] : roots_) {
    if (!other.ends_with(salt) || other == key || other.starts_with("draft ")) continue;
    if (std::string_view(other).substr(other.find('\n') + 1) != salt) continue;
    if (more(common(other, prompt))) return Miss::kPolicy;
  }
  if (!salt.empty() && more(common(key.substr(0, policy), prompt))) return Miss::kSalt;
  return Miss::kNeverStored;
}

void PrefixCache::keep_within(Owner* owner) {
  now_ = std::chrono::steady_clock::now();
  std::vector<Ranked> own;
  for (Node* node : stored_) {
    if (node->reuse.turn->owner.get() == owner) own.push_back(ranked(node));
  }
  ranked_ = false;
  std::make_heap(own.begin(), own.end());
  while (!own.empty() && owner->bytes > owner->limit) {
    std::pop_heap(own.begin(), own.end());
    own.back() = ranked(own.back().node);
    if (own.size() > 1 && own.back() < own.front()) {  // its value has risen
      std::push_heap(own.begin(), own.end());
      continue;
    }
    Node* const lowest = own.back().node;
    own.pop_back();
    if (may_go(*lowest, Evict::kUnused)) drop(lowest);
  }
}

std::vector<PrefixListing> PrefixCache::list_states(size_t most) {
  now_ = std::chrono::steady_clock::now();
  struct Row {
    double value;  // negative if the state is only in a file
    Node* node;
    std::string policy;
  };
  std::vector<Row> rows;
  const auto visit = [&](const auto& self, const std::string& policy, Node* node) -> void {
    if (node->state != nullptr || !node->file.empty()) {
      rows.push_back({node->state == nullptr ? -1 : ranked(node).value, node, policy});
    }
    for (const auto& [token, child] : node->children) self(self, policy, child.get());
  };
  for (const auto& [key, root] : roots_) visit(visit, key.substr(0, key.find('\n')), root.get());
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.value > b.value; });
  if (rows.size() > most) rows.resize(most);
  std::vector<PrefixListing> listings;
  for (const auto& [value, node, policy] : rows) {
    PrefixListing& listing = listings.emplace_back();
    listing = {.policy = policy, .tokens = node->depth, .idle_requests = reuse_.now() - node->reuse.since};
    listing.in_file = !node->file.empty();
    if (node->state == nullptr) continue;
    const CacheStats stats = node->state->cache->stats();
    listing.in_memory = true;
    listing.bytes = stats.bytes;
    listing.freed_bytes = stats.bytes - stats.shared_bytes;
    listing.value = value;
  }
  return listings;
}

bool PrefixCache::leads_nowhere(const Node& node) {
  return node.state == nullptr && node.file.empty() && node.children.empty();
}

void PrefixCache::sweep(Node* node) {
  std::erase_if(node->children, [](const auto& child) {
    sweep(child.second.get());
    return leads_nowhere(*child.second);
  });
}

void PrefixCache::prune(Node* node) {
  while (node->parent != nullptr && leads_nowhere(*node)) {
    Node* parent = node->parent;
    parent->children.erase(node->edge[0]);
    node = parent;
  }
  std::erase_if(roots_, [](const auto& root) { return leads_nowhere(*root.second); });
}

}  // namespace smartkv

#include "cache/prefix_cache.h"

#include <algorithm>
#include <queue>
#include <unordered_set>

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

}  // namespace

PrefixCache::PrefixCache(int64_t max_bytes, PrefixFiles* files)
    : max_bytes_(max_bytes), versions_(kGroups, 1), files_(files) {
  if (files == nullptr) return;
  for (auto& [name, record] : files->take_found()) {
    if (static_cast<int64_t>(record.tokens.size()) < kLeastTokens) continue;
    Node* node = node_of(record.key, record.tokens);
    by_file_[name] = node;
    node->file = name;
    node->committed = record.committed;
    node->group = group_of(record.key, record.tokens);
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
                                                 int64_t most) {
  int64_t parts = 0;
  if (diverges_at == nullptr) diverges_at = &parts;
  *diverges_at = 0;
  collect_files();
  const auto root = roots_.find(key);
  if (root == roots_.end()) return nullptr;
  std::unique_ptr<SequenceCache> cache;
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
    if (held != nullptr) *held = of->state;
    break;
  }
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
  use(node);
  return true;
}

void PrefixCache::hold(Node* node, std::shared_ptr<const SequenceCache> cache, int64_t own_bytes) {
  if (node->state == nullptr) {
    node->state = std::make_shared<State>();
    ++n_states_;
  }
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
                                      std::unique_ptr<SequenceCache> state, int64_t own_bytes) {
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
  hold(node, cache, own_bytes);
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
  make_room();
  return kept.lock();
}

void PrefixCache::make_room() {
  while (bytes_ > max_bytes_ && (evict(Evict::kUnheld) || evict(Evict::kUnused) || evict(Evict::kAny))) {
  }
}

bool PrefixCache::may_go(const Node& node, Evict which) {
  if (node.state == nullptr) return false;
  if (which == Evict::kAny || node.state.use_count() == 1) return true;
  // A sequence that runs with the state's pages holds `running` as well. The other holders wait to resume from it.
  const long waiting = node.state.use_count() - node.state->running.use_count();
  const bool owed = node.state->owed.use_count() > 1;
  // A preempted sequence also loses a state that only it wants: while it waits, other sequences run with those bytes.
  const bool wanted = waiting > (owed ? 1 : 0);
  if (which == Evict::kUnheld && wanted) return false;
  if (which == Evict::kUnused && wanted && owed) return false;
  if (which == Evict::kUnused && node.state->running.use_count() == 1) return true;
  const CacheStats stats = node.state->cache->stats();
  return stats.bytes > 2 * stats.shared_bytes;
}

PrefixCache::Node* PrefixCache::oldest(Node* node, Evict which) {
  Node* found = may_go(*node, which) ? node : nullptr;
  for (const auto& [token, child] : node->children) {
    Node* other = oldest(child.get(), which);
    if (other != nullptr && (found == nullptr || other->used < found->used)) found = other;
  }
  return found;
}

bool PrefixCache::evict(Evict which) {
  Node* found = nullptr;
  for (const auto& [key, root] : roots_) {
    Node* other = oldest(root.get(), which);
    if (other != nullptr && (found == nullptr || other->used < found->used)) found = other;
  }
  if (found != nullptr) drop(found);
  return found != nullptr;
}

void PrefixCache::drop(Node* node) {
  bytes_ -= node->state->own_bytes;
  --n_states_;
  ++versions_[node->group];
  if (!node->file.empty() && files_->cancel(node->file)) {
    by_file_.erase(node->file);
    node->file.clear();
  }
  node->state->cache.reset();  // Other holders of the state lose its cache, too.
  node->state.reset();
  list(node);
  prune(node);
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

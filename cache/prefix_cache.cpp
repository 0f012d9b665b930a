#include "cache/prefix_cache.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "cache/state_io.h"

namespace smartkv {
namespace {

// How many of the first tokens two runs have in common.
int64_t in_common(std::span<const int32_t> a, std::span<const int32_t> b) {
  const auto end = std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first;
  return end - a.begin();
}

// The state as the cache of a prompt of prompt_tokens that begins with its first n tokens; null if its policy cannot.
std::unique_ptr<SequenceCache> cut_back(const SequenceCache& state, int64_t n, int64_t prompt_tokens) {
  if (n == state.next_boundary()) --n;  // to commit there would compress
  if (n < std::max(state.committed(), PrefixCache::kLeastTokens)) return nullptr;
  const std::unique_ptr<SequenceCache> cut = state.fork();
  if (n < cut->tokens()) cut->truncate(n);
  cut->commit(n);
  return cut->resume(prompt_tokens);
}

}  // namespace

PrefixCache::PrefixCache(int64_t max_bytes, PrefixFiles* files) : max_bytes_(max_bytes), files_(files) {
  if (files == nullptr) return;
  for (auto& [name, record] : files->take_found()) {
    if (static_cast<int64_t>(record.tokens.size()) < kLeastTokens) continue;
    Node* node = node_of(record.key, record.tokens);
    node->file = name;
    node->committed = record.committed;
    node->used = ++clock_;
    by_file_[name] = node;
  }
}

PrefixCache::~PrefixCache() = default;

void PrefixCache::collect(Node* node, int64_t n, std::vector<Candidate>* candidates) {
  if (n < kLeastTokens) return;  // most states are of other prompts, which part early
  const bool cuts = node->state != nullptr || (!node->file.empty() && n >= node->committed);
  if (cuts) candidates->push_back({node, n});
  for (const auto& [token, child] : node->children) collect(child.get(), n, candidates);
}

std::vector<PrefixCache::Candidate> PrefixCache::candidates(Node* node, std::span<const int32_t> prompt,
                                                            int64_t* parts_at) const {
  const auto most = static_cast<int64_t>(prompt.size()) - 1;
  std::vector<Candidate> candidates;
  for (int64_t n = 0; node != nullptr;) {
    if (node->state != nullptr || !node->file.empty()) candidates.push_back({node, n});
    Node* next = nullptr;
    for (const auto& [token, child] : node->children) {
      if (n < most && token == prompt[static_cast<size_t>(n)]) {
        next = child.get();
      } else {
        collect(child.get(), n, &candidates);  // goes on otherwise from here
      }
    }
    node = next;
    if (next == nullptr) break;
    const int64_t same = in_common(prompt.subspan(static_cast<size_t>(n), static_cast<size_t>(most - n)), next->edge);
    n += same;
    *parts_at = n;
    if (same == static_cast<int64_t>(next->edge.size())) continue;
    collect(next, n, &candidates);
    break;
  }
  // Of equals the shortest: what prompts part at serves them all, while one that is to be cut back is one question's.
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    if (a.n != b.n) return a.n > b.n;
    const int64_t depth_a = depth(a.node), depth_b = depth(b.node);
    return depth_a != depth_b ? depth_a < depth_b : a.node->used > b.node->used;
  });
  return candidates;
}

PrefixCache::Covered PrefixCache::covers(const std::string& key, std::span<const int32_t> prompt) {
  const auto root = roots_.find(key);
  if (root == roots_.end()) return {};
  int64_t parts_at = 0;
  for (const Candidate& candidate : candidates(root->second.get(), prompt, &parts_at)) {
    if (candidate.n < kLeastTokens) break;
    if (candidate.n < committed(*candidate.node)) continue;
    candidate.node->used = ++clock_;
    return {candidate.n, candidate.node->state};
  }
  return {};
}

std::unique_ptr<SequenceCache> PrefixCache::find(const std::string& key, const KvCachePolicy& policy,
                                                 std::span<const int32_t> prompt, int64_t* parts_at, Held* held,
                                                 int64_t most) {
  int64_t parts = 0;
  if (parts_at == nullptr) parts_at = &parts;
  *parts_at = 0;
  collect_files();
  const auto root = roots_.find(key);
  if (root == roots_.end()) return nullptr;
  std::unique_ptr<SequenceCache> cache;
  bool swept = true;
  for (const Candidate& candidate : candidates(root->second.get(), prompt, parts_at)) {
    Node* of = candidate.node;
    const int64_t n = std::min(candidate.n, most);
    if (of->state == nullptr && (n < kLeastTokens || !load(of, depth(of), policy))) {
      swept = swept && !of->file.empty();
      continue;
    }
    cache = cut_back(*of->state->cache, n, static_cast<int64_t>(prompt.size()));
    if (cache == nullptr) continue;
    of->used = ++clock_;
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

int64_t PrefixCache::depth(const Node* node) {
  int64_t n = 0;
  for (; node != nullptr; node = node->parent) n += static_cast<int64_t>(node->edge.size());
  return n;
}

bool PrefixCache::load(Node* node, int64_t n_tokens, const KvCachePolicy& policy) {
  const std::optional<std::string> bytes = files_->read(node->file);
  std::unique_ptr<SequenceCache> state;
  if (bytes) {
    try {
      StateReader in(*bytes);
      state = policy.load(&in);
      in.expect(in.left() == 0 && state->tokens() == n_tokens, "a state of these tokens, and no more");
    } catch (const CacheError& problem) {
      state = nullptr;
      files_->skip(node->file, problem.what());
    }
  }
  if (state == nullptr) {
    by_file_.erase(node->file);
    node->file.clear();
    return false;
  }
  node->used = ++clock_;
  const int64_t own_bytes = state->stats().bytes;
  hold(node, std::move(state), own_bytes);
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
  ++version_;
}

void PrefixCache::collect_files() {
  if (files_ == nullptr) return;
  for (const PrefixFiles::Name& name : files_->collect()) {
    const auto found = by_file_.find(name);
    if (found == by_file_.end()) continue;
    Node* node = found->second;
    by_file_.erase(found);
    node->file.clear();
    prune(node);
  }
}

// Changes the tree only once all memory for the change is there.
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
      node = node->children.emplace(tokens[0], std::move(leaf)).first->second.get();
      break;
    }
    std::unique_ptr<Node>& child = found->second;
    const int64_t same = in_common(tokens, child->edge);
    if (same < static_cast<int64_t>(child->edge.size())) {  // parts in the middle of the edge
      auto middle = std::make_unique<Node>();
      middle->edge.assign(child->edge.begin(), child->edge.begin() + same);
      middle->parent = node;
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
  node->used = ++clock_;
  // The one that is there can be cut back further.
  const bool better = node->state == nullptr ? node->file.empty() || node->committed > state->committed()
                                             : node->state->cache->committed() > state->committed();
  if (node->state != nullptr && !better) return node->state;
  const std::shared_ptr<const SequenceCache> cache(std::move(state));
  hold(node, cache, own_bytes);
  if (files_ != nullptr && better && cache->save(nullptr)) {
    const PrefixRecord record{key, {tokens.begin(), tokens.end()}, cache->committed(), own_bytes};
    if (const auto name = files_->write(record, cache)) {
      node->file = *name;
      node->committed = cache->committed();
      by_file_[*name] = node;
    }
  }
  const std::weak_ptr<const State> kept = node->state;  // held by nobody: it may go first
  make_room();
  return kept.lock();
}

void PrefixCache::make_room() {
  while (bytes_ > max_bytes_ && (evict(Evict::kUnheld) || evict(Evict::kOfUse) || evict(Evict::kAny))) {
  }
}

bool PrefixCache::may_go(const Node& node, Evict which) {
  if (node.state == nullptr) return false;
  if (which == Evict::kAny || node.state.use_count() == 1) return true;
  // Who runs with a state holds `running`, too: the others are to go on from it.
  const long waiting = node.state.use_count() - node.state->running.use_count();
  const bool owed = node.state->owed.use_count() > 1;
  // One that lost its memory loses what only it wants, too: as long as it waits others run with those bytes.
  const bool wanted = waiting > (owed ? 1 : 0);
  if (which == Evict::kUnheld && wanted) return false;
  if (which == Evict::kOfUse && wanted && owed) return false;
  if (which == Evict::kOfUse && node.state->running.use_count() == 1) return true;
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
  ++version_;
  if (!node->file.empty() && files_->cancel(node->file)) {
    by_file_.erase(node->file);
    node->file.clear();
  }
  node->state->cache.reset();  // those who hold it, too, have it no more
  node->state.reset();
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

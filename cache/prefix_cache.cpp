#include "cache/prefix_cache.h"

#include <algorithm>
#include <utility>

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

PrefixCache::~PrefixCache() = default;

void PrefixCache::collect(Node* node, int64_t n, std::vector<Candidate>* candidates) {
  if (node->state != nullptr) candidates->push_back({node, n});
  for (const auto& [token, child] : node->children) collect(child.get(), n, candidates);
}

std::unique_ptr<SequenceCache> PrefixCache::find(const std::string& key, std::span<const int32_t> prompt,
                                                 int64_t* parts_at) {
  if (parts_at != nullptr) *parts_at = 0;
  const auto root = roots_.find(key);
  if (root == roots_.end()) return nullptr;
  const auto most = static_cast<int64_t>(prompt.size()) - 1;
  std::vector<Candidate> candidates;
  Node* node = root->second.get();
  for (int64_t n = 0; node != nullptr;) {
    if (node->state != nullptr) candidates.push_back({node, n});
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
    if (parts_at != nullptr) *parts_at = n;
    if (same == static_cast<int64_t>(next->edge.size())) continue;
    collect(next, n, &candidates);
    break;
  }
  std::stable_sort(candidates.begin(), candidates.end(), [](const Candidate& a, const Candidate& b) {
    return a.n != b.n ? a.n > b.n : a.node->used > b.node->used;
  });
  for (const Candidate& candidate : candidates) {
    std::unique_ptr<SequenceCache> cache =
        cut_back(*candidate.node->state, candidate.n, static_cast<int64_t>(prompt.size()));
    if (cache == nullptr) continue;
    candidate.node->used = ++clock_;
    return cache;
  }
  return nullptr;
}

void PrefixCache::insert(const std::string& key, std::span<const int32_t> tokens, std::unique_ptr<SequenceCache> state,
                         int64_t own_bytes) {
  own_bytes = std::max<int64_t>(0, own_bytes);
  if (own_bytes > max_bytes_ || static_cast<int64_t>(tokens.size()) < kLeastTokens) return;
  std::unique_ptr<Node>& root = roots_[key];
  if (root == nullptr) root = std::make_unique<Node>();
  Node* node = root.get();
  while (!tokens.empty()) {
    std::unique_ptr<Node>& child = node->children[tokens[0]];
    if (child == nullptr) {
      child = std::make_unique<Node>();
      child->edge.assign(tokens.begin(), tokens.end());
      child->parent = node;
      node = child.get();
      break;
    }
    const int64_t same = in_common(tokens, child->edge);
    if (same < static_cast<int64_t>(child->edge.size())) {  // parts in the middle of the edge
      auto middle = std::make_unique<Node>();
      middle->edge.assign(child->edge.begin(), child->edge.begin() + same);
      middle->parent = node;
      child->edge.erase(child->edge.begin(), child->edge.begin() + same);
      child->parent = middle.get();
      const int32_t first = child->edge[0];
      middle->children[first] = std::move(child);
      child = std::move(middle);
    }
    node = child.get();
    tokens = tokens.subspan(static_cast<size_t>(same));
  }
  node->used = ++clock_;
  if (node->state == nullptr) {
    ++n_states_;
  } else if (node->state->committed() <= state->committed()) {
    return;  // the one that is there can be cut back further
  } else {
    bytes_ -= node->own_bytes;
  }
  node->state = std::move(state);
  node->own_bytes = own_bytes;
  bytes_ += own_bytes;
  while (bytes_ > max_bytes_) evict();
}

PrefixCache::Node* PrefixCache::oldest(Node* node) {
  Node* found = node->state == nullptr ? nullptr : node;
  for (const auto& [token, child] : node->children) {
    Node* other = oldest(child.get());
    if (other != nullptr && (found == nullptr || other->used < found->used)) found = other;
  }
  return found;
}

bool PrefixCache::evict() {
  Node* found = nullptr;
  for (const auto& [key, root] : roots_) {
    Node* other = oldest(root.get());
    if (other != nullptr && (found == nullptr || other->used < found->used)) found = other;
  }
  if (found != nullptr) drop(found);
  return found != nullptr;
}

void PrefixCache::drop(Node* node) {
  bytes_ -= node->own_bytes;
  --n_states_;
  node->state.reset();
  node->own_bytes = 0;
  while (node->parent != nullptr && node->state == nullptr && node->children.empty()) {  // leads nowhere any more
    Node* parent = node->parent;
    parent->children.erase(node->edge[0]);
    node = parent;
  }
  std::erase_if(roots_, [](const auto& root) { return root.second->state == nullptr && root.second->children.empty(); });
}

}  // namespace smartkv

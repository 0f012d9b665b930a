#include "engine/parallel/leading_model.h"

#include "cache/forwarding_cache.h"
#include "cache/policy.h"

namespace smartkv {
namespace {

using nlohmann::json;

// Rank 0's part of a cache. The other ranks repeat every change on their parts.
class LeadingCache final : public ForwardingCache {
 public:
  // Tells the other ranks to make their parts: by `operation`, whose arguments after the new id are `arguments`.
  // `heads` is null unless the policy exchanges().
  template <typename... Arguments>
  LeadingCache(std::shared_ptr<RankLink> link, std::shared_ptr<RankHeads> heads, std::unique_ptr<SequenceCache> part,
               std::string_view operation, Arguments... arguments)
      : ForwardingCache({part.get()}),
        link_(std::move(link)),
        heads_(std::move(heads)),
        id_(link_->new_id()),
        part_(std::move(part)) {
    link_->tell({operation, id_, arguments...});
  }
  ~LeadingCache() override { link_->tell({rank_operation::kRelease, id_}); }

  int64_t id() const { return id_; }
  SequenceCache* part() { return part_.get(); }

  void truncate(int64_t n_tokens) override {
    ForwardingCache::truncate(n_tokens);
    link_->tell({rank_operation::kTruncate, id_, n_tokens});
  }
  void commit(int64_t n_tokens) override {
    const bool packs = n_tokens == next_boundary() && n_tokens == tokens(), together = packs && heads_ != nullptr;
    link_->tell({rank_operation::kCommit, id_, n_tokens, together});
    if (together) return commit_together(n_tokens);
    // Send the commit now, so that all ranks compact at the same time.
    if (packs && link_->lost().empty()) link_->flush();
    ForwardingCache::commit(n_tokens);
  }
  std::unique_ptr<SequenceCache> fork() const override {
    return std::make_unique<LeadingCache>(link_, heads_, part_->fork(), rank_operation::kFork, id_);
  }
  std::unique_ptr<SequenceCache> resume(int64_t prompt_tokens) const override {
    std::unique_ptr<SequenceCache> part = part_->resume(prompt_tokens);
    if (part == nullptr) return nullptr;
    return std::make_unique<LeadingCache>(link_, heads_, std::move(part), rank_operation::kResume, id_, prompt_tokens);
  }
  int64_t max_growth(int64_t n) const override { return ranks() * ForwardingCache::max_growth(n); }
  int64_t stable_bytes() const override { return ranks() * ForwardingCache::stable_bytes(); }
  CacheStats stats() const override {
    CacheStats stats = ForwardingCache::stats();
    stats.bytes *= ranks();
    stats.shared_bytes *= ranks();
    stats.full_bytes *= ranks();
    return stats;
  }

 private:
  int64_t ranks() const { return link_->group().size(); }
  void commit_together(int64_t n_tokens) {
    link_->flush();
    try {
      heads_->together([&] { ForwardingCache::commit(n_tokens); });
    } catch (const RankError& error) {
      link_->lose_by(error);
      throw RankError(link_->lost());
    }
  }

  std::shared_ptr<RankLink> link_;
  std::shared_ptr<RankHeads> heads_;
  int64_t id_;
  std::unique_ptr<SequenceCache> part_;
};

class LeadingPolicy final : public KvCachePolicy {
 public:
  // Tells the other ranks to make what `part` is, whatever it stands in for. gate_stand_in: the stand_in() of such a
  // policy, which is for lack of a gate.
  LeadingPolicy(std::shared_ptr<RankLink> link, const std::shared_ptr<RankHeads>& heads,
                std::unique_ptr<KvCachePolicy> part, const std::string& gate_stand_in)
      : link_(std::move(link)),
        heads_(part->exchanges() ? heads : nullptr),
        id_(link_->new_id()),
        part_(std::move(part)) {
    set_stand_in(part_->stand_in());
    set_spec(part_->spec(), part_->promise());
    link_->tell({rank_operation::kPolicy, id_, spec(), gate_stand_in});
  }
  ~LeadingPolicy() override { link_->tell({rank_operation::kForget, id_}); }

  std::string_view name() const override { return part_->name(); }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    return link_->group().size() * part_->max_bytes(prompt_tokens, n_tokens);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<LeadingCache>(link_, heads_, part_->new_sequence(prompt_tokens), rank_operation::kCreate,
                                          id_, prompt_tokens);
  }

 private:
  std::shared_ptr<RankLink> link_;
  std::shared_ptr<RankHeads> heads_;  // null unless the policy exchanges()
  int64_t id_;
  std::unique_ptr<KvCachePolicy> part_;
};

}  // namespace

LeadingModel::LeadingModel(std::unique_ptr<PartModel> part, std::shared_ptr<RankLink> link,
                           std::unique_ptr<RankProcesses> processes)
    : part_(std::move(part)), link_(std::move(link)), processes_(std::move(processes)) {
  weight_bytes_ = meet_loaded(link_->group(), part_->weight_bytes());
}

LeadingModel::~LeadingModel() {
  try {
    link_->tell(json::array({rank_operation::kEnd}));
    link_->flush();
  } catch (const RankError&) {  // a rank is lost; the others end when this process does
  }
}

std::unique_ptr<KvCachePolicy> LeadingModel::make_policy(const PolicyContext& context, const json& spec) const {
  std::unique_ptr<KvCachePolicy> part = smartkv::make_policy(context, spec);
  if (const std::string what = part->across_heads(); !what.empty()) {
    throw CacheError("kv_cache: expected a policy that supports KV heads on different ranks (tensor_parallel " +
                     std::to_string(ranks()) + "), found \"" + std::string(part->name()) + "\", which " + what);
  }
  {
    const std::lock_guard lock(pool_mutex_);
    if (pool_ == nullptr) excess_ = std::make_unique<PoolCharge>(pool_ = context.pool);
  }
  const std::string gate_stand_in =
      part->stand_in().empty() ? "" : smartkv::make_policy(context, part->spec())->stand_in();
  return std::make_unique<LeadingPolicy>(link_, part_->rank_heads(), std::move(part), gate_stand_in);
}

void LeadingModel::forward(std::span<const SequenceInput> batch, float* logits) {
  std::exception_ptr untold;
  try {
    untold = pass(batch, logits);
  } catch (const std::exception& error) {
    link_->lose_by(error);
    if (processes_ != nullptr) processes_->kill();
    throw RankError(link_->lost());
  }
  if (untold != nullptr) std::rethrow_exception(untold);
}

void LeadingModel::idle() {
  if (const auto [pool, own] = held_here(); pool != nullptr && own == 0) excess_->set(0);
  if (!link_->lost().empty()) return;
  try {
    link_->flush();
  } catch (const RankError&) {  // the link remembers the loss, and the engine asks lost()
  }
}

std::pair<PagePool*, int64_t> LeadingModel::held_here() const {
  const std::lock_guard lock(pool_mutex_);
  return {pool_.get(), pool_ == nullptr ? 0 : pool_->bytes_in_use() - excess_->bytes()};
}

std::exception_ptr LeadingModel::pass(std::span<const SequenceInput> batch, float* logits) {
  std::vector<SequenceInput> inputs(batch.begin(), batch.end());
  std::vector<std::exception_ptr> failures(batch.size());
  json told = json::array({rank_operation::kForward});
  for (size_t i = 0; i < batch.size(); ++i) {
    auto& cache = dynamic_cast<LeadingCache&>(*batch[i].cache);
    inputs[i].cache = cache.part();
    inputs[i].failure = &failures[i];
    told.push_back(
        {cache.id(), batch[i].n_logits, std::vector<TokenId>(batch[i].tokens.begin(), batch[i].tokens.end())});
  }
  link_->tell(std::move(told));
  link_->flush();
  part_->forward(inputs, logits);
  // Status of each cache, then the bytes of the pool. Becomes the maximum over all ranks.
  std::vector<int64_t> others(batch.size() + 1);
  const auto [pool, own] = held_here();
  others.back() = own;
  link_->group().max(others);
  if (pool != nullptr) excess_->set(others.back() - own);
  std::exception_ptr untold;
  for (size_t i = 0; i < batch.size(); ++i) {
    if (failures[i] == nullptr) failures[i] = failure_elsewhere(others[i]);
    if (failures[i] == nullptr) continue;
    if (batch[i].failure != nullptr) {
      *batch[i].failure = failures[i];
    } else {
      untold = failures[i];
    }
  }
  return untold;
}

int64_t meet_loaded(RankGroup& ranks, int64_t weight_bytes) {
  constexpr int64_t kNotLoaded = INT64_MAX;
  std::vector<int64_t> bytes(static_cast<size_t>(ranks.size()));
  bytes[static_cast<size_t>(ranks.rank())] = weight_bytes < 0 ? kNotLoaded : weight_bytes;
  ranks.max(bytes, true);
  int64_t all = 0;
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    if (bytes[rank] == kNotLoaded) {
      throw ModelError("tensor_parallel: rank " + std::to_string(rank) +
                       " could not load its part of the model; see its message in the log");
    }
    all += bytes[rank];
  }
  return all;
}

}  // namespace smartkv

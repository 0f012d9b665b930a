#include "engine/parallel/follower.h"

#include <new>
#include <optional>

#include <nlohmann/json.hpp>

#include "engine/log.h"
#include "engine/parallel/leading_model.h"

namespace smartkv {
namespace {

using nlohmann::json;

class Follower {
 public:
  Follower(RankGroup& ranks, PartModel& part, const PolicyContext& context)
      : ranks_(ranks), part_(part), context_(context), full_(make_policy(context, "full")) {}

  // Applies one operation. Returns false for kEnd.
  bool run(const json& operation) {
    namespace op = rank_operation;
    const auto& name = operation[0].get_ref<const std::string&>();
    const auto number = [&](size_t i) { return operation[i].get<int64_t>(); };
    if (name == op::kForward) {
      forward(operation);
    } else if (name == op::kCommit) {
      change(number(1), operation[3].get<bool>(), [n = number(2)](SequenceCache& cache) { cache.commit(n); });
    } else if (name == op::kTruncate) {
      change(number(1), false, [n = number(2)](SequenceCache& cache) { cache.truncate(n); });
    } else if (name == op::kRelease) {
      sequences_.erase(number(1));
    } else if (name == op::kCreate) {
      make(number(1), {}, [&] { return policies_.at(number(2))->new_sequence(number(3)); });
    } else if (name == op::kFork) {
      make(number(1), number(2), [&] { return sequences_.at(number(2)).cache->fork(); });
    } else if (name == op::kResume) {
      make(number(1), number(2), [&] { return sequences_.at(number(2)).cache->resume(number(3)); });
    } else if (name == op::kPolicy) {
      policies_[number(1)] = make_policy_as(operation[2], operation[3].get_ref<const std::string&>());
    } else if (name == op::kForget) {
      policies_.erase(number(1));
    } else if (name == op::kEnd) {
      return false;
    } else {
      throw RankError("expected a known operation, found \"" + name + "\"");
    }
    return true;
  }

 private:
  // Makes the policy that rank 0 has made. If that has something in place of a gate or a calibration, this rank does
  // not use one either: they may have been made while the ranks started. Throws RankError if this rank lacks what rank
  // 0 has.
  std::unique_ptr<KvCachePolicy> make_policy_as(const json& spec, const std::string& stand_in) const {
    PolicyContext context = context_;
    if (!stand_in.empty()) context.load_gate = nullptr;
    std::string found;
    for (const bool calibrated : {true, false}) {
      if (!calibrated) context.load_sensitivity = nullptr;
      try {
        auto policy = make_policy(context, spec);
        if (policy->stand_in() == stand_in) return policy;
        if (calibrated) found = policy->stand_in();
      } catch (const ModelLacks& error) {
        if (calibrated) found = error.what();
      }
    }
    throw RankError("rank " + std::to_string(ranks_.rank()) + ": kv_cache " + spec.dump() +
                    ": expected the gate or calibration that rank 0 has, found " + found);
  }

  struct Held {
    std::unique_ptr<SequenceCache> cache;  // null if it could not be made
    int64_t failure = kCacheIsFine;        // any other status means that the cache must not be used any more
  };

  // Logs the exception that is being handled and returns its status. Rethrows RankError.
  int64_t failed(int64_t id) const {
    try {
      throw;
    } catch (const RankError&) {
      throw;
    } catch (const std::bad_alloc&) {
      log_warning("rank " + std::to_string(ranks_.rank()) +
                  ": the machine has no memory left for the KV cache of sequence " + std::to_string(id));
    } catch (const std::exception& error) {
      log_warning("rank " + std::to_string(ranks_.rank()) + ": the KV cache of sequence " + std::to_string(id) +
                  " failed: " + error.what());
    }
    return cache_failure(std::current_exception());
  }

  // Changes a cache. With `together` all ranks change it together, so the other ranks learn of a failure here,
  // including an earlier one.
  template <typename Change>
  void change(int64_t id, bool together, const Change& change) {
    Held& held = sequences_.at(id);
    if (held.failure != 0 && !together) return;
    const auto run = [&] {
      if (held.failure != 0) std::rethrow_exception(failure_elsewhere(held.failure));
      change(*held.cache);
    };
    try {
      together ? part_.rank_heads()->together(run) : run();
    } catch (...) {
      held.failure = failed(id);
    }
  }

  // Makes a cache. `of` is the sequence that it is forked or resumed from, whose failure it inherits.
  template <typename Make>
  void make(int64_t id, std::optional<int64_t> of, const Make& make) {
    Held& held = sequences_[id];
    if (of) held.failure = sequences_.at(*of).failure;
    if (held.failure != 0) return;
    try {
      held.cache = make();
      if (held.cache == nullptr) throw CacheError("expected a state that can be resumed, as on rank 0, found none");
    } catch (...) {
      held.failure = failed(id);
    }
  }

  void forward(const json& operation) {
    std::vector<std::vector<TokenId>> tokens;
    std::vector<SequenceInput> inputs;
    std::vector<Held*> held;
    // Caches in place of failed ones, because all ranks must run the same pass. Rank 0 learns of the failures after the
    // pass.
    std::vector<std::unique_ptr<SequenceCache>> stand_ins;
    std::vector<std::exception_ptr> failures(operation.size() - 1);
    for (size_t i = 1; i < operation.size(); ++i) {
      held.push_back(&sequences_.at(operation[i][0].get<int64_t>()));
      tokens.push_back(operation[i][2].get<std::vector<TokenId>>());
      SequenceCache* cache = held.back()->cache.get();
      if (held.back()->failure != 0) cache = stand_ins.emplace_back(full_->new_sequence(0)).get();
      inputs.push_back({tokens.back(), cache, operation[i][1].get<int64_t>(), &failures[i - 1]});
    }
    part_.forward(inputs, nullptr);
    std::vector<int64_t> told;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (held[i]->failure == 0 && failures[i] != nullptr) {
        try {
          std::rethrow_exception(failures[i]);
        } catch (...) {
          held[i]->failure = failed(operation[i + 1][0].get<int64_t>());
        }
      }
      told.push_back(held[i]->failure);
    }
    told.push_back(context_.pool->bytes_in_use());
    ranks_.max(told);
  }

  RankGroup& ranks_;
  PartModel& part_;
  const PolicyContext& context_;
  std::unique_ptr<KvCachePolicy> full_;
  std::map<int64_t, std::unique_ptr<KvCachePolicy>> policies_;
  std::map<int64_t, Held> sequences_;
};

}  // namespace

void follow(RankGroup& ranks, PartModel& part, const PolicyContext& context) {
  Follower follower(ranks, part, context);
  for (;;) {
    for (const json& operation : json::from_cbor(ranks.receive())) {
      if (!follower.run(operation)) return;
    }
  }
}

}  // namespace smartkv

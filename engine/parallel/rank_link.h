// Rank 0's end of the stream of operations that it sends to the other tensor-parallel ranks.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>

#include <nlohmann/json.hpp>

#include "engine/parallel/rank_group.h"

namespace smartkv {

// The names of operations. A message is an array of operations as CBOR. An operation is an array: its name, followed by
// the arguments that the comments list.
namespace rank_operation {
inline constexpr std::string_view kPolicy = "policy";      // policy id, KvCachePolicy::spec(), stand_in()
inline constexpr std::string_view kForget = "forget";      // policy id; destroys the policy
inline constexpr std::string_view kCreate = "create";      // new cache id, policy id, tokens of the prompt
inline constexpr std::string_view kFork = "fork";          // new cache id, cache id
inline constexpr std::string_view kResume = "resume";      // new cache id, cache id, tokens of the prompt
inline constexpr std::string_view kTruncate = "truncate";  // cache id, tokens
inline constexpr std::string_view kCommit = "commit";      // cache id, tokens, whether RankHeads::together() commits
inline constexpr std::string_view kRelease = "release";    // cache id
inline constexpr std::string_view kForward = "forward";    // for each input: [cache id, n_logits, tokens]
inline constexpr std::string_view kEnd = "end";
}  // namespace rank_operation

// Collects operations and sends them, and keeps track of whether all ranks are still there.
class RankLink {
 public:
  // Sets the group. Call it before any other member except lose() and watch().
  void join(std::unique_ptr<RankGroup> group) { group_ = std::move(group); }
  RankGroup& group() { return *group_; }
  // Returns a new id for a policy or cache. Any thread.
  int64_t new_id() { return next_id_++; }

  // Queues an operation for the next flush(). Does nothing once a rank is lost. Any thread.
  void tell(nlohmann::json operation);
  // Sends the queued operations. Called by the model's thread. Throws RankError, after which a rank counts as lost.
  void flush();

  // Marks a rank as lost. The first reason wins; it is logged, and the function of on_lost() is called. Any thread.
  void lose(const std::string& why);
  std::string lost() const;  // the reason; empty while all ranks are there. Any thread
  // Marks a rank as lost after a failure of the group. A broken connection usually means that a process has ended, and
  // the watcher of the processes knows best which one. If there is a watcher, this waits up to a second for its reason;
  // otherwise, or if none comes, `failure` is the reason.
  void lose_by(const std::exception& failure);
  void watch() { watched_ = true; }  // declares that a watcher calls lose() when a process ends
  // Sets the function to call when a rank is lost; null for none.
  void on_lost(std::function<void()> call);

 private:
  std::unique_ptr<RankGroup> group_;
  std::atomic<int64_t> next_id_{1};
  mutable std::mutex mutex_;
  mutable std::condition_variable loss_;
  nlohmann::json pending_ = nlohmann::json::array();
  std::string lost_;
  bool watched_ = false;
  std::mutex call_mutex_;  // guards on_lost_, and is held while it runs
  std::function<void()> on_lost_;
};

}  // namespace smartkv

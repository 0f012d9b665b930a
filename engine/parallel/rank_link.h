// Rank 0's end of what it tells the others.
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

// What the others are told: an array of operations, as CBOR. Each is an array: its name, then what stands behind it here.
namespace rank_operation {
inline constexpr std::string_view kPolicy = "policy";      // id, kv_cache's specification
inline constexpr std::string_view kForget = "forget";      // id: the policy goes
inline constexpr std::string_view kCreate = "create";      // id, the policy's, the prompt's tokens: a cache
inline constexpr std::string_view kFork = "fork";          // id, whose
inline constexpr std::string_view kResume = "resume";      // id, whose, the prompt's tokens
inline constexpr std::string_view kTruncate = "truncate";  // id, tokens
inline constexpr std::string_view kCommit = "commit";      // id, tokens, whether all ranks do it together
inline constexpr std::string_view kRelease = "release";    // id
inline constexpr std::string_view kForward = "forward";    // of each input: cache's id, n_logits, tokens
inline constexpr std::string_view kEnd = "end";
}  // namespace rank_operation

class RankLink {
 public:
  void join(std::unique_ptr<RankGroup> group) { group_ = std::move(group); }  // before all else but lose()
  RankGroup& group() { return *group_; }
  int64_t new_id() { return next_id_++; }

  // Goes with the next flush(). Any thread. Once a rank is lost nobody is told anything.
  void tell(nlohmann::json operation);
  void flush();  // the model's thread; throws RankError, and then a rank is lost

  // The first reason counts; it is logged, and on_lost() called. Any thread.
  void lose(const std::string& why);
  std::string lost() const;  // empty: all are there
  // After a failure of the group: a connection breaks when a process ends, and whose, its watcher knows best, if there is one. The
  // reason is that which it tells soon, else this one.
  void lose_by(const std::exception& failure);
  void watch() { watched_ = true; }  // somebody calls lose() when a process ends
  void on_lost(std::function<void()> call);

 private:
  std::unique_ptr<RankGroup> group_;
  std::atomic<int64_t> next_id_{1};
  mutable std::mutex mutex_;
  mutable std::condition_variable loss_;
  nlohmann::json pending_ = nlohmann::json::array();
  std::string lost_;
  bool watched_ = false;
  std::mutex call_mutex_;  // while on_lost_ is called
  std::function<void()> on_lost_;
};

}  // namespace smartkv

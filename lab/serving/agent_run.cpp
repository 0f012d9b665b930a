#include "lab/serving/agent_run.h"

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <set>
#include <thread>
#include <tuple>

#include "lab/serving/serving_benchmark.h"

namespace smartkv {

namespace {

using Json = nlohmann::ordered_json;

class AgentDriver {
 public:
  AgentDriver(const LoadClient& client, std::span<const AgentTurn> turns, const AgentRunOptions& options,
              AgentConversations* conversations)
      : client_(client), options_(options), unfinished_(turns.size()) {
    std::map<std::string, size_t> places;
    for (const AgentTurn& turn : turns) {
      const auto [place, added] = places.try_emplace(turn.session, sessions_.size());
      if (added) sessions_.push_back({.turns = {}, .next = 0, .conversation = &(*conversations)[turn.session]});
      sessions_[place->second].turns.push_back(&turn);
    }
  }

  std::vector<AgentTurnResult> run() {
    start_ = Clock::now();
    for (size_t i = 0; i < sessions_.size(); ++i) enqueue(i);
    std::vector<std::jthread> workers;
    for (int64_t i = 0; i < options_.at_once; ++i) workers.emplace_back([this] { work(); });
    workers.clear();  // joins them
    return std::move(results_);
  }

 private:
  using Clock = LoadClient::Clock;
  struct Session {
    std::vector<const AgentTurn*> turns;
    size_t next = 0;
    std::vector<AgentMessage>* conversation = nullptr;
  };

  double now_s() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

  // Queues the session's next request. REQUIRES: the lock is held, or no worker runs.
  void enqueue(size_t session) {
    const AgentTurn& turn = *sessions_[session].turns[sessions_[session].next];
    double ready_s = now_s();
    if (!options_.ignore_times) ready_s = std::max(ready_s + turn.think_s.value_or(0), turn.time_s.value_or(0));
    ready_.insert({ready_s, order_++, session});
  }

  void work() {
    std::unique_lock lock(mutex_);
    while (unfinished_ > 0) {
      if (ready_.empty()) {
        wake_.wait(lock);
        continue;
      }
      const auto [ready_s, order, place] = *ready_.begin();
      if (const double wait_s = ready_s - now_s(); wait_s > 0) {
        wake_.wait_for(lock, std::chrono::duration<double>(wait_s));
        continue;
      }
      ready_.erase(ready_.begin());
      Session& session = sessions_[place];
      lock.unlock();
      AgentTurnResult result = send(*session.turns[session.next], session.conversation);
      lock.lock();
      finish(place, std::move(result));
      wake_.notify_all();
    }
  }

  AgentTurnResult send(const AgentTurn& turn, std::vector<AgentMessage>* conversation) const {
    if (turn.keep) conversation->resize(static_cast<size_t>(*turn.keep));
    conversation->insert(conversation->end(), turn.messages.begin(), turn.messages.end());
    const std::string body = body_of(*conversation, turn.output_tokens);
    AgentTurnResult result{.turn = &turn, .sent_s = now_s(), .ended_s = 0, .outcome = {}};
    result.outcome = client_.ask({"/v1/chat/completions", body, std::nullopt, turn.output_tokens}, Clock::now());
    result.ended_s = now_s();
    conversation->push_back({"assistant", result.outcome.text});
    return result;
  }

  std::string body_of(const std::vector<AgentMessage>& conversation, int64_t output_tokens) const {
    Json body = {{"model", client_.model()},
                 {"messages", Json::array()},
                 {"max_tokens", output_tokens},
                 {"temperature", 0},
                 {"stream", true},
                 {"stream_options", {{"include_usage", true}}}};
    for (const AgentMessage& message : conversation) {
      body["messages"].push_back({{"role", message.role}, {"content", message.content}});
    }
    const bool is_length = options_.length_field == "min_tokens";
    body[options_.length_field] = is_length ? Json(output_tokens) : Json(true);
    return body.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  // Records a result and queues the session's next request. If it failed, the rest of the session does.
  void finish(size_t place, AgentTurnResult result) {
    Session& session = sessions_[place];
    const bool completed = result.outcome.completed();
    results_.push_back(std::move(result));
    --unfinished_;
    if (++session.next == session.turns.size()) return;
    if (completed) return enqueue(place);
    for (; session.next < session.turns.size(); ++session.next, --unfinished_) {
      AgentTurnResult skipped{.turn = session.turns[session.next], .sent_s = 0, .ended_s = 0, .outcome = {}};
      skipped.outcome.failure = "an earlier request of the session failed";
      results_.push_back(std::move(skipped));
    }
  }

  const LoadClient& client_;
  const AgentRunOptions& options_;
  Clock::time_point start_;
  std::mutex mutex_;
  std::condition_variable wake_;
  size_t unfinished_;
  std::vector<Session> sessions_;
  std::set<std::tuple<double, int64_t, size_t>> ready_;  // when, order of arrival, session
  int64_t order_ = 0;
  std::vector<AgentTurnResult> results_;
};

}  // namespace

std::vector<AgentTurnResult> run_agents(const LoadClient& client, std::span<const AgentTurn> turns,
                                        const AgentRunOptions& options, AgentConversations* conversations) {
  return AgentDriver(client, turns, options, conversations).run();
}

double AgentSummary::found() const {
  return prompt_tokens > 0 ? static_cast<double>(cached_tokens) / static_cast<double>(prompt_tokens) : 0;
}

AgentSummary summarize_agents(std::span<const AgentTurnResult> results) {
  AgentSummary summary;
  std::vector<double> first_tokens;
  summary.turns = static_cast<int64_t>(results.size());
  for (const AgentTurnResult& result : results) {
    if (!result.outcome.completed()) {
      ++summary.failed;
      if (summary.failure.empty()) summary.failure = result.outcome.failure;
      continue;
    }
    summary.wall_s = std::max(summary.wall_s, result.ended_s);
    summary.prompt_tokens += result.outcome.prompt_tokens;
    summary.cached_tokens += result.outcome.cached_tokens;
    first_tokens.push_back(result.outcome.first_token_s);
  }
  const auto completed = static_cast<double>(first_tokens.size());
  summary.turns_per_min = summary.wall_s > 0 ? 60 * completed / summary.wall_s : 0;
  summary.first_token_p50_s = percentile(first_tokens, 0.5);
  summary.first_token_p95_s = percentile(first_tokens, 0.95);
  return summary;
}

}  // namespace smartkv

#include "lab/serving/load_client.h"

#include <algorithm>
#include <charconv>
#include <condition_variable>
#include <latch>
#include <mutex>
#include <stdexcept>
#include <thread>

#include <httplib.h>
#include <nlohmann/json.hpp>

namespace smartkv {

namespace {

constexpr auto kGaugeInterval = std::chrono::milliseconds(100);
constexpr auto kAdminTimeout = std::chrono::seconds(30);  // for /v1/models and /metrics
constexpr int kTooManyRequests = 429;
constexpr std::chrono::seconds kRetryAfter{1};  // used if the refusal has no Retry-After

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

std::chrono::seconds retry_after(const httplib::Response& response) {
  const std::string text = response.get_header_value("Retry-After");
  int64_t seconds = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seconds);
  const bool whole = error == std::errc() && end == text.data() + text.size() && !text.empty() && seconds >= 0;
  return whole ? std::chrono::seconds(seconds) : kRetryAfter;
}

}  // namespace

LoadClient::LoadClient(const std::string& url, const LoadOptions& options) : address_(url), options_(options) {
  while (address_.ends_with('/')) address_.pop_back();
  if (address_.ends_with("/v1")) address_.resize(address_.size() - 3);
  if (!address_.starts_with("http://") || address_.find('/', 7) != address_.npos) {
    throw std::invalid_argument("expected an address of the form http://HOST:PORT, found \"" + url + "\"");
  }
  httplib::Client client(address_);
  client.set_read_timeout(kAdminTimeout);
  const auto response = client.Get("/v1/models");
  if (!response) throw std::runtime_error(url + ": no answer: " + httplib::to_string(response.error()));
  const nlohmann::json models = nlohmann::json::parse(response->body, nullptr, false);
  try {
    model_ = models.at("data").at(0).at("id").get<std::string>();
  } catch (const nlohmann::json::exception&) {
    throw std::runtime_error(url + "/v1/models: expected a list of models, found " + error_message(response->body));
  }
}

StreamedRequest LoadClient::completion(const ServingRequest& request) const {
  const nlohmann::json body = {{"model", model_},
                               {"prompt", request.prompt},
                               {"max_tokens", request.output_tokens},
                               {"temperature", 0},
                               {"ignore_eos", true},
                               {"stream", true},
                               {"stream_options", {{"include_usage", true}}}};
  return {"/v1/completions", body.dump(), static_cast<int64_t>(request.prompt.size()), request.output_tokens};
}

RequestOutcome LoadClient::ask(const StreamedRequest& request, Clock::time_point start) const {
  httplib::Client client(address_);
  client.set_read_timeout(options_.timeout);
  client.set_tcp_nodelay(true);
  for (int64_t retries = 0;; ++retries) {
    CompletionReader reader;
    SseParser events([&](std::string_view data) { reader.add(data, seconds_between(start, Clock::now())); });
    int status = 0;
    std::string refusal;
    httplib::Request http;
    http.method = "POST";
    http.path = request.path;
    http.headers = {{"Content-Type", "application/json"}};
    http.body = request.body;
    http.response_handler = [&](const httplib::Response& response) {
      status = response.status;
      return true;
    };
    http.content_receiver = [&](const char* data, size_t n, uint64_t, uint64_t) {
      if (status == 200) {
        events.feed({data, n});
      } else {
        refusal.append(data, n);
      }
      return true;
    };
    const httplib::Result response = client.send(http);
    RequestOutcome outcome;
    if (!response) {
      const bool told = status == 200 && !reader.error().empty();  // the stream's last event was an error
      outcome.failure = told ? reader.error() : "the connection was lost: " + httplib::to_string(response.error());
    } else if (response->status != 200) {
      if (response->status == kTooManyRequests && options_.retry) {
        std::this_thread::sleep_for(retry_after(*response));
        continue;
      }
      outcome.failure = std::to_string(response->status) + ": " + error_message(refusal);
    } else {
      outcome = reader.finish(request.prompt_tokens, request.output_tokens);
    }
    outcome.retries = retries;
    return outcome;
  }
}

std::vector<RequestOutcome> LoadClient::send_all(std::span<const ServingRequest> requests) const {
  std::vector<RequestOutcome> outcomes(requests.size());
  std::vector<StreamedRequest> streamed;
  for (const ServingRequest& request : requests) streamed.push_back(completion(request));
  Clock::time_point start;
  std::latch ready(static_cast<ptrdiff_t>(requests.size())), go(1);
  std::vector<std::jthread> threads;
  for (size_t i = 0; i < requests.size(); ++i) {
    threads.emplace_back([&, i] {
      ready.count_down();
      go.wait();
      outcomes[i] = ask(streamed[i], start);
    });
  }
  ready.wait();
  start = Clock::now();
  go.count_down();
  threads.clear();  // joins the threads
  return outcomes;
}

std::optional<std::string> LoadClient::metrics() const {
  httplib::Client client(address_);
  client.set_read_timeout(kAdminTimeout);
  const auto response = client.Get("/metrics");
  if (!response || response->status != 200) return std::nullopt;
  return response->body;
}

std::optional<double> metric_value(std::string_view text, std::string_view name) {
  std::optional<double> sum;
  for (size_t start = 0; start < text.size();) {
    const size_t end = std::min(text.find('\n', start), text.size());
    const std::string_view line = text.substr(start, end - start);
    start = end + 1;
    if (!line.starts_with(name) || line.size() == name.size()) continue;
    const char after = line[name.size()];
    if (after != '{' && after != ' ') continue;
    const size_t labels = after == '{' ? line.rfind('}') : name.size() - 1;
    if (labels == line.npos) continue;
    const size_t first = line.find_first_not_of(' ', labels + 1);
    double value = 0;
    if (first == line.npos) continue;
    if (std::from_chars(line.data() + first, line.data() + line.size(), value).ec != std::errc()) continue;
    sum = sum.value_or(0) + value;
  }
  return sum;
}

struct PeakGauge::State {
  std::mutex mutex;
  std::condition_variable wake;
  bool stopping = false;
  std::optional<double> peak;
  std::thread thread;
};

PeakGauge::PeakGauge(const LoadClient& client, std::string name) : state_(std::make_unique<State>()) {
  state_->thread = std::thread([&client, name = std::move(name), state = state_.get()] {
    std::unique_lock lock(state->mutex);
    do {
      lock.unlock();
      const std::optional<std::string> text = client.metrics();
      const std::optional<double> value = text ? metric_value(*text, name) : std::nullopt;
      lock.lock();
      if (!value) return;
      state->peak = std::max(state->peak.value_or(*value), *value);
    } while (!state->wake.wait_for(lock, kGaugeInterval, [&] { return state->stopping; }));
  });
}

PeakGauge::~PeakGauge() { stop(); }

std::optional<double> PeakGauge::stop() {
  {
    const std::lock_guard lock(state_->mutex);
    state_->stopping = true;
  }
  state_->wake.notify_all();
  if (state_->thread.joinable()) state_->thread.join();
  return state_->peak;
}

}  // namespace smartkv

#include "lab/serving/completion_stream.h"

#include <utility>

#include <nlohmann/json.hpp>

namespace smartkv {

namespace {

constexpr size_t kShownBytes = 200;  // bytes to show of a body that is not an error in OpenAI's format

std::string expected(const char* what, int64_t wanted, int64_t found) {
  return std::string(what) + ": expected " + std::to_string(wanted) + ", found " + std::to_string(found);
}

std::string message_of(const nlohmann::json& error) {
  return error.is_object() && error.contains("message") && error["message"].is_string()
             ? error["message"].get<std::string>()
             : error.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace

void SseParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    const size_t end = bytes.find('\n');
    pending_ += bytes.substr(0, end);
    if (end == bytes.npos) return;
    bytes.remove_prefix(end + 1);
    if (pending_.ends_with('\r')) pending_.pop_back();
    line(pending_);
    pending_.clear();
  }
}

void SseParser::line(std::string_view text) {
  if (text.empty()) {  // the end of an event
    if (has_data_) on_data_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  constexpr std::string_view kField = "data:";
  if (!text.starts_with(kField)) return;
  text.remove_prefix(kField.size());
  if (text.starts_with(' ')) text.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += text;
  has_data_ = true;
}

double RequestOutcome::per_token_s() const {
  return output_tokens > 1 ? (last_token_s - first_token_s) / static_cast<double>(output_tokens - 1) : 0;
}

void CompletionReader::add(std::string_view data, double now_s) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const nlohmann::json chunk = nlohmann::json::parse(data, nullptr, false);
  if (!chunk.is_object()) {
    outcome_.failure = "an event is not a JSON object: " + std::string(data.substr(0, kShownBytes));
    return;
  }
  if (const auto error = chunk.find("error"); error != chunk.end()) {
    outcome_.failure = message_of(*error);
    return;
  }
  try {
    const auto choices = chunk.find("choices");
    if (choices != chunk.end() && !choices->empty()) {
      const nlohmann::json& choice = choices->at(0);
      const auto finish = choice.find("finish_reason");
      const bool finished = finish != choice.end() && finish->is_string();
      if (finished) finish_reason_ = finish->get<std::string>();
      if (finished || !choice.at("text").get_ref<const std::string&>().empty()) {
        if (!std::exchange(started_, true)) outcome_.first_token_s = now_s;
        outcome_.last_token_s = now_s;
      }
    }
    const auto usage = chunk.find("usage");
    if (usage != chunk.end() && usage->is_object()) {
      has_usage_ = true;
      outcome_.prompt_tokens = usage->at("prompt_tokens").get<int64_t>();
      outcome_.output_tokens = usage->at("completion_tokens").get<int64_t>();
      const auto details = usage->find("prompt_tokens_details");
      if (details != usage->end() && details->is_object()) {
        outcome_.cached_tokens = details->value("cached_tokens", int64_t{0});
      }
    }
  } catch (const nlohmann::json::exception& error) {
    outcome_.failure = "an event is not a completion: " + std::string(error.what());
  }
}

RequestOutcome CompletionReader::finish(int64_t prompt_tokens, int64_t output_tokens) const {
  RequestOutcome outcome = outcome_;
  if (!outcome.completed()) return outcome;
  if (!done_) {
    outcome.failure = "the stream ended without [DONE]";
  } else if (!has_usage_) {
    outcome.failure = "the stream has no usage";
  } else if (outcome.prompt_tokens != prompt_tokens) {
    outcome.failure = expected("usage.prompt_tokens", prompt_tokens, outcome.prompt_tokens);
  } else if (outcome.output_tokens != output_tokens) {
    outcome.failure = expected("usage.completion_tokens", output_tokens, outcome.output_tokens);
  } else if (finish_reason_ != "length") {
    outcome.failure = "finish_reason: expected \"length\", found \"" + finish_reason_ + "\"";
  }
  return outcome;
}

std::string error_message(std::string_view body) {
  const nlohmann::json json = nlohmann::json::parse(body, nullptr, false);
  if (json.is_object() && json.contains("error")) return message_of(json["error"]);
  return std::string(body.substr(0, kShownBytes));
}

}  // namespace smartkv

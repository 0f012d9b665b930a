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

// Returns a text that a server may leave out or set to null.
std::string text_in(const nlohmann::json& object, const char* key) {
  const auto text = object.find(key);
  return text == object.end() || text->is_null() ? std::string() : text->get<std::string>();
}

// Returns the number `key` of the object `part`, or 0 if there is no such object.
int64_t number_in(const nlohmann::json& usage, const char* part, const char* key) {
  const auto object = usage.find(part);
  return object == usage.end() || !object->is_object() ? 0 : object->value(key, int64_t{0});
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
    if (choices != chunk.end() && !choices->empty()) take_choice(choices->at(0), now_s);
    const auto usage = chunk.find("usage");
    if (usage != chunk.end() && usage->is_object()) take_usage(*usage);
  } catch (const nlohmann::json::exception& error) {
    outcome_.failure = "an event is not a completion: " + std::string(error.what());
  }
}

void CompletionReader::take_choice(const nlohmann::json& choice, double now_s) {
  const auto finish = choice.find("finish_reason");
  const bool finished = finish != choice.end() && finish->is_string();
  if (finished) finish_reason_ = finish->get<std::string>();
  const bool chat = choice.contains("delta");
  const nlohmann::json& part = chat ? choice.at("delta") : choice;
  const std::string text = chat ? text_in(part, "content") : part.at("text").get<std::string>();
  outcome_.text += text;
  if (!finished && text.empty() && text_in(part, "reasoning_content").empty()) return;
  if (!std::exchange(started_, true)) outcome_.first_token_s = now_s;
  outcome_.last_token_s = now_s;
}

void CompletionReader::take_usage(const nlohmann::json& usage) {
  has_usage_ = true;
  outcome_.prompt_tokens = usage.at("prompt_tokens").get<int64_t>();
  outcome_.output_tokens = usage.at("completion_tokens").get<int64_t>();
  outcome_.cached_tokens = number_in(usage, "prompt_tokens_details", "cached_tokens");
  outcome_.kv_bytes = number_in(usage, "kv_cache", "bytes");
}

RequestOutcome CompletionReader::finish(std::optional<int64_t> prompt_tokens, int64_t output_tokens) const {
  RequestOutcome outcome = outcome_;
  if (!outcome.completed()) return outcome;
  if (!done_) {
    outcome.failure = "the stream ended without [DONE]";
  } else if (!has_usage_) {
    outcome.failure = "the stream has no usage";
  } else if (prompt_tokens && outcome.prompt_tokens != *prompt_tokens) {
    outcome.failure = expected("usage.prompt_tokens", *prompt_tokens, outcome.prompt_tokens);
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

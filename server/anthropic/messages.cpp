#include "server/anthropic/messages.h"

#include <utility>

#include "server/openai/cut_json.h"
#include "server/openai/json_body.h"
#include "server/openai/response.h"
#include "server/openai/usage.h"

namespace smartkv::anthropic {

using openai::AnswerPiece;

namespace {

// Returns the input of a tool_use block. A text that was cut is completed. A model that no grammar constrains may write
// something else than an object, which becomes the member "text".
Json input_of(const std::string& arguments) {
  if (arguments.find_first_not_of(openai::kBlanks) == arguments.npos) return Json::object();
  std::vector<std::string> texts = openai::completed_json(arguments);
  texts.insert(texts.begin(), arguments);
  for (const std::string& text : texts) {
    try {
      Json input = openai::parse_json(text, {.integers = openai::Integers::kExact, .repeated_keys = true});
      if (input.is_object()) return input;
    } catch (const openai::JsonSyntaxError&) {
    }
  }
  return {{"text", arguments}};
}

// Returns the members of our usage that Anthropic's API does not have.
Json extra_usage(const RequestUsage& usage, const MessagesRequest& request) {
  Json extra = openai::usage_json(usage);
  for (const char* key : {"prompt_tokens", "completion_tokens", "total_tokens", "completion_tokens_details"})
    extra.erase(key);
  openai::add_line_changes(request.chat.line_changes, &extra["prompt_tokens_details"]);
  if (request.ignored_thinking > 0) extra["prompt_tokens_details"]["ignored_thinking"] = request.ignored_thinking;
  extra["timings"] = openai::timings_json(usage);
  return extra;
}

}  // namespace

MessagesStream::MessagesStream(const MessagesRequest& request) : request_(request), parser_(request.chat) {
  message_ = {{"id", request.chat.id},       {"type", "message"},        {"role", "assistant"},
              {"model", request.chat.model}, {"content", Json::array()}, {"stop_reason", nullptr},
              {"stop_sequence", nullptr}};
}

// Tokens that were computed count as written to the cache if the request has a cache_control, because this server keeps
// the whole prompt then. Otherwise they count as input.
Json MessagesStream::usage_members(const RequestUsage& usage) const {
  const int64_t computed = usage.prompt_tokens - usage.cached_tokens;
  const int64_t created = request_.cache_ttl.empty() ? 0 : computed;
  const bool hour = request_.cache_ttl == "1h";
  const Json details = openai::usage_json(usage)["completion_tokens_details"];
  return {{"input_tokens", computed - created},
          {"cache_creation_input_tokens", created},
          {"cache_read_input_tokens", usage.cached_tokens},
          {"cache_creation",
           {{"ephemeral_5m_input_tokens", hour ? 0 : created}, {"ephemeral_1h_input_tokens", hour ? created : 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"thinking_tokens", details["reasoning_tokens"]}}},
          {"service_tier", "standard"}};
}

void MessagesStream::begin(const RequestUsage& usage, std::vector<Json>* events) {
  if (std::exchange(begun_, true)) return;
  message_["usage"] = usage_members(usage);
  message_["usage"]["output_tokens"] = 0;
  events->push_back({{"type", "message_start"}, {"message", message_}});
  events->push_back({{"type", "ping"}});
}

void MessagesStream::open_block(Json block, std::vector<Json>* events) {
  close_block(events);
  events->push_back({{"type", "content_block_start"}, {"index", message_["content"].size()}, {"content_block", block}});
  message_["content"].push_back(std::move(block));
  open_ = true;
}

void MessagesStream::add_delta(Json delta, std::vector<Json>* events) {
  events->push_back(
      {{"type", "content_block_delta"}, {"index", message_["content"].size() - 1}, {"delta", std::move(delta)}});
}

void MessagesStream::close_block(std::vector<Json>* events) {
  if (!std::exchange(open_, false)) return;
  Json& block = message_["content"].back();
  if (block["type"] == "tool_use") block["input"] = input_of(std::exchange(arguments_, {}));
  if (block["type"] == "thinking") {
    const std::string thinking = std::exchange(thinking_, {});
    block["signature"] = request_.omits_thinking ? request_.signer.seal(thinking) : request_.signer.sign(thinking);
    add_delta({{"type", "signature_delta"}, {"signature", block["signature"]}}, events);
  }
  events->push_back({{"type", "content_block_stop"}, {"index", message_["content"].size() - 1}});
}

void MessagesStream::add_text(const char* type, const std::string& text, std::vector<Json>* events) {
  if (text.empty()) return;
  const bool thinks = type == std::string_view("thinking");
  if (!open_ || message_["content"].back()["type"] != type) {
    Json block = {{"type", type}, {type, ""}};
    if (thinks) block["signature"] = "";
    open_block(std::move(block), events);
  }
  if (thinks) thinking_ += text;
  if (thinks && request_.omits_thinking) return;
  message_["content"].back()[type].get_ref<std::string&>() += text;
  add_delta({{"type", std::string(type) + "_delta"}, {type, text}}, events);
}

void MessagesStream::add_piece(const AnswerPiece& piece, std::vector<Json>* events) {
  if (piece.call < 0) {
    add_text("thinking", piece.reasoning, events);
    return add_text("text", piece.text, events);
  }
  if (!piece.name.empty()) {
    open_block({{"type", "tool_use"},
                {"id", openai::new_call_id(request_.chat, "toolu_")},
                {"name", piece.name},
                {"input", Json::object()}},
               events);
  }
  if (piece.arguments.empty()) return;
  arguments_ += piece.arguments;
  add_delta({{"type", "input_json_delta"}, {"partial_json", piece.arguments}}, events);
}

std::vector<Json> MessagesStream::add(const std::vector<AnswerPiece>& pieces, const RequestUsage& usage) {
  std::vector<Json> events;
  begin(usage, &events);
  for (const AnswerPiece& piece : pieces) add_piece(piece, &events);
  return events;
}

std::vector<Json> MessagesStream::add(const GenerationEvent& event, const openai::GenerationRun& run) {
  openai::throw_if_failed(event);
  const std::vector<AnswerPiece> pieces = parser_.take(event);
  if (event.finish != FinishReason::kNone) {
    finish_ = event.finish;
    stop_string_ = event.stop_string;
  }
  return add(pieces, begun_ ? RequestUsage() : run.usage());
}

std::string MessagesStream::stop_reason(const RequestUsage& usage) const {
  if (finish_ == FinishReason::kLength) {
    const bool limit = usage.completion_tokens >= request_.chat.generations.front().max_tokens;
    return limit ? "max_tokens" : "model_context_window_exceeded";
  }
  if (stop_string_) return "stop_sequence";
  return parser_.calls() > 0 && !parser_.incomplete() ? "tool_use" : "end_turn";
}

std::vector<Json> MessagesStream::finish(const RequestUsage& usage) {
  std::vector<Json> events;
  begin(usage, &events);
  close_block(&events);
  message_["stop_reason"] = stop_reason(usage);
  message_["stop_sequence"] = stop_string_ ? Json(*stop_string_) : Json(nullptr);
  message_["usage"] = usage_members(usage);
  message_["usage"]["smartkv"] = extra_usage(usage, request_);
  events.push_back({{"type", "message_delta"},
                    {"delta", {{"stop_reason", message_["stop_reason"]}, {"stop_sequence", message_["stop_sequence"]}}},
                    {"usage", message_["usage"]}});
  events.push_back({{"type", "message_stop"}});
  return events;
}

}  // namespace smartkv::anthropic

#include "server/openai/responses.h"

#include <utility>

#include "server/openai/response.h"
#include "server/openai/usage.h"

namespace smartkv::openai {

namespace {

// Returns an empty part of the content of an item: a message, or reasoning.
Json empty_part(const std::string& item_type) {
  if (item_type == "reasoning") return {{"type", "reasoning_text"}, {"text", ""}};
  return {{"type", "output_text"}, {"text", ""}, {"annotations", Json::array()}, {"logprobs", Json::array()}};
}

// Returns the items of the output that have a text, without it.
Json new_message() {
  return {{"id", make_id("msg_")},
          {"type", "message"},
          {"status", "in_progress"},
          {"role", "assistant"},
          {"content", Json::array()}};
}
Json new_reasoning() {
  return {{"id", make_id("rs_")},
          {"type", "reasoning"},
          {"status", "in_progress"},
          {"summary", Json::array()},
          {"content", Json::array()}};
}

Json usage_members(const RequestUsage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", prefix_json(usage)},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

}  // namespace

ResponsesStream::ResponsesStream(const ResponsesRequest& request, std::function<bool(const Json&)> keep)
    : request_(request), keep_(std::move(keep)), parser_(request.chat) {
  response_ = {{"id", request.chat.id}, {"object", "response"}, {"created_at", unix_time()}, {"status", "in_progress"}};
  response_.update(request.echoed);
  response_["output"] = Json::array();
  response_["usage"] = nullptr;
}

Json ResponsesStream::event(const char* type, const Json& members) {
  Json result = {{"type", type}, {"sequence_number", sequence_++}};
  result.update(members);
  return result;
}

std::vector<Json> ResponsesStream::start() {
  std::vector<Json> events;
  events.push_back(event("response.created", {{"response", response_}}));
  events.push_back(event("response.in_progress", {{"response", response_}}));
  return events;
}

void ResponsesStream::open_item(Json item, std::vector<Json>* events) {
  close_item(events);
  const bool has_text = item["type"] != "function_call";
  const std::string id = item["id"];
  const auto index = static_cast<int64_t>(response_["output"].size());
  events->push_back(event("response.output_item.added", {{"output_index", index}, {"item", item}}));
  if (has_text) {
    item["content"].push_back(empty_part(item["type"]));
    events->push_back(
        event("response.content_part.added",
              {{"item_id", id}, {"output_index", index}, {"content_index", 0}, {"part", item["content"][0]}}));
  }
  response_["output"].push_back(std::move(item));
  open_ = true;
}

void ResponsesStream::close_item(std::vector<Json>* events) {
  if (!std::exchange(open_, false)) return;
  const auto index = static_cast<int64_t>(response_["output"].size()) - 1;
  Json& item = response_["output"].back();
  const bool cut_call = parser_.incomplete() && item["type"] == "function_call";
  item["status"] = finish_ == FinishReason::kLength || cut_call ? "incomplete" : "completed";
  const Json place = {{"item_id", item["id"]}, {"output_index", index}};
  if (item["type"] != "function_call") {
    const bool message = item["type"] == "message";
    Json text = place, part = place;
    text.update({{"content_index", 0}, {"text", item["content"][0]["text"]}});
    if (message) text["logprobs"] = Json::array();
    part.update({{"content_index", 0}, {"part", item["content"][0]}});
    events->push_back(event(message ? "response.output_text.done" : "response.reasoning_text.done", text));
    events->push_back(event("response.content_part.done", part));
  } else {
    Json call = place;
    call.update({{"name", item["name"]}, {"arguments", item["arguments"]}});
    events->push_back(event("response.function_call_arguments.done", call));
  }
  events->push_back(event("response.output_item.done", {{"output_index", index}, {"item", item}}));
}

void ResponsesStream::add_piece(const AnswerPiece& piece, std::vector<Json>* events) {
  const bool has_text = piece.call < 0, thinks = has_text && !piece.reasoning.empty();
  if (!has_text && !piece.name.empty()) {
    open_item({{"id", make_id("fc_")},
               {"type", "function_call"},
               {"status", "in_progress"},
               {"call_id", make_id("call_")},
               {"name", piece.name},
               {"arguments", ""}},
              events);
  }
  if (has_text && (!open_ || response_["output"].back()["type"] != (thinks ? "reasoning" : "message"))) {
    open_item(thinks ? new_reasoning() : new_message(), events);
  }
  const std::string& more = thinks ? piece.reasoning : has_text ? piece.text : piece.arguments;
  if (more.empty()) return;
  Json& item = response_["output"].back();
  Json& text = has_text ? item["content"][0]["text"] : item["arguments"];
  text.get_ref<std::string&>() += more;
  Json delta = {
      {"item_id", item["id"]}, {"output_index", static_cast<int64_t>(response_["output"].size()) - 1}, {"delta", more}};
  if (has_text) delta["content_index"] = 0;
  if (has_text && !thinks) delta["logprobs"] = Json::array();
  events->push_back(event(thinks     ? "response.reasoning_text.delta"
                          : has_text ? "response.output_text.delta"
                                     : "response.function_call_arguments.delta",
                          delta));
}

std::vector<Json> ResponsesStream::add(const GenerationEvent& generated, const GenerationRun&) {
  throw_if_failed(generated);
  std::vector<Json> events;
  for (const AnswerPiece& piece : parser_.take(generated)) add_piece(piece, &events);
  if (generated.finish != FinishReason::kNone) finish_ = generated.finish;
  return events;
}

std::vector<Json> ResponsesStream::finish(const RequestUsage& usage) {
  std::vector<Json> events;
  if (response_["output"].empty()) add_piece({}, &events);  // an answer without text is an empty message
  close_item(&events);
  const bool cut = finish_ == FinishReason::kLength;
  response_["status"] = cut ? "incomplete" : "completed";
  if (cut) response_["incomplete_details"] = {{"reason", "max_output_tokens"}};
  response_["usage"] = usage_members(usage);
  add_line_changes(request_.chat.line_changes, &response_["usage"]["input_tokens_details"]);
  store();
  events.push_back(event(cut ? "response.incomplete" : "response.completed", {{"response", response_}}));
  return events;
}

void ResponsesStream::abort(const ApiError* error) {
  if (std::exchange(open_, false)) response_["output"].back()["status"] = "incomplete";
  response_["status"] = error == nullptr ? "cancelled" : "failed";
  if (error != nullptr) {
    response_["error"] = {{"code", error->code.empty() ? error->type : error->code}, {"message", error->what()}};
  }
  store();
}

void ResponsesStream::store() {
  if (keep_ != nullptr) response_["store"] = keep_(response_);
}

}  // namespace smartkv::openai

#include "server/openai/response.h"

#include <chrono>
#include <utility>

#include "server/openai/usage.h"
#include "server/version.h"

namespace smartkv::openai {

namespace {

const GenerationRequest& generation(const ApiRequest& request) { return request.generations.front(); }

size_t n_choices(const ApiRequest& request) {
  return request.generations.size() * static_cast<size_t>(generation(request).n);
}

// Returns the text that a choice begins with: its prompt if the request asked for `echo`, else "".
std::string echo_text(const ApiRequest& request, int32_t choice) {
  return request.echo.empty() ? "" : request.echo[static_cast<size_t>(choice / generation(request).n)];
}

void add_prompt_logprobs(const ApiRequest& request, int32_t choice, const GenerationRun& run, LegacyLogprobs* out) {
  const GenerationRequest& prompt = request.generations[static_cast<size_t>(choice / generation(request).n)];
  if (prompt.prompt_logprobs < 0) return;
  out->add_unscored(prompt.prompt.front());
  for (const TokenLogprob& logprob : run.prompt_logprobs(choice)) out->add(logprob);
}

// Returns the members that every response and chunk begins with.
Json head(const ApiRequest& request, const char* object, int64_t created) {
  return {{"id", request.id},
          {"object", object},
          {"created", created},
          {"model", request.model},
          {"system_fingerprint", "smartkv-" + std::string(kVersion)}};
}

// Returns a choice's finish_reason. `parser` is null for completions. A call cut by a stop string does not count as a
// call to make.
Json finish_json(FinishReason reason, const AnswerParser* parser = nullptr) {
  if (reason == FinishReason::kStop && parser != nullptr && parser->calls() > 0 && !parser->incomplete())
    return "tool_calls";
  return reason == FinishReason::kNone ? Json(nullptr) : Json(finish_reason(reason));
}

Json new_call(const ApiRequest& request, const std::string& name) {
  return {
      {"id", new_call_id(request, "call_")}, {"type", "function"}, {"function", {{"name", name}, {"arguments", ""}}}};
}

Json usage_of(const ApiRequest& request, const RequestUsage& usage) {
  Json json = usage_json(usage);
  add_line_changes(request.line_changes, &json["prompt_tokens_details"]);
  return json;
}

LegacyLogprobs legacy_logprobs(const ApiRequest& request, const Tokenizer& tokenizer) {
  return {tokenizer, generation(request).skip_special_tokens, 0};
}

}  // namespace

std::string new_call_id(const ApiRequest& request, const char* prefix) {
  const bool mistral =
      request.tools && (request.tools->form == ToolForm::kMistral || request.tools->form == ToolForm::kMistralArgs);
  return mistral ? make_id("").substr(0, 9) : make_id(prefix);  // Mistral's templates require 9 characters
}

int64_t unix_time() {
  return std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view finish_reason(FinishReason reason) { return reason == FinishReason::kLength ? "length" : "stop"; }

void throw_if_failed(const GenerationEvent& event) {
  if (event.finish == FinishReason::kError) throw server_error(event.error);
  if (event.finish == FinishReason::kOutOfMemory) throw out_of_memory(event.error);
  if (event.finish == FinishReason::kLost) throw lost(event.error);
  if (event.finish == FinishReason::kCancelled) throw draining();
}

WholeResponse::WholeResponse(const ApiRequest& request, const Tokenizer& tokenizer)
    : request_(request), tokenizer_(tokenizer), created_(unix_time()) {
  for (size_t i = 0; i < n_choices(request); ++i) {
    choices_.push_back(
        {.text = echo_text(request, static_cast<int32_t>(i)),
         .reasoning = {},
         .chat_logprobs = {},
         .legacy_logprobs = legacy_logprobs(request, tokenizer),
         .shown = {tokenizer, generation(request).skip_special_tokens, generation(request).shown_special},
         .parser = request.chat ? std::optional(AnswerParser(request)) : std::nullopt});
  }
}

void WholeResponse::add(const GenerationEvent& event, const GenerationRun& run) {
  throw_if_failed(event);
  Choice& choice = choices_.at(static_cast<size_t>(event.choice));
  if (!std::exchange(choice.started, true)) {
    add_prompt_logprobs(request_, event.choice, run, &choice.legacy_logprobs);
  }
  add_text(event, &choice);
  if (event.finish != FinishReason::kNone) choice.finish = event.finish;
  for (const TokenLogprob& logprob : choice.shown.take(event)) {
    if (request_.chat) {
      choice.chat_logprobs.push_back(logprob);
    } else {
      choice.legacy_logprobs.add(logprob);
    }
  }
}

void WholeResponse::add_text(const GenerationEvent& event, Choice* choice) {
  if (!choice->parser) {
    choice->text += event.text;
    return;
  }
  for (const AnswerPiece& piece : choice->parser->take(event)) {
    choice->text += piece.text;
    choice->reasoning += piece.reasoning;
    if (!piece.name.empty()) choice->tool_calls.push_back(new_call(request_, piece.name));
    if (piece.call >= 0) choice->tool_calls.back()["function"]["arguments"].get_ref<std::string&>() += piece.arguments;
  }
}

Json WholeResponse::message_json(const Choice& choice) const {
  const bool only_calls = !choice.tool_calls.empty() && choice.text.empty();
  Json message = {
      {"role", "assistant"}, {"content", only_calls ? Json(nullptr) : Json(choice.text)}, {"refusal", nullptr}};
  if (!choice.reasoning.empty()) message["reasoning_content"] = choice.reasoning;
  if (!choice.tool_calls.empty()) message["tool_calls"] = choice.tool_calls;
  return message;
}

Json WholeResponse::choice_json(size_t index) {
  Choice& choice = choices_[index];
  const int32_t top_k = generation(request_).logprobs;
  if (!request_.chat) {
    return {{"text", choice.text},
            {"index", index},
            {"logprobs", choice.legacy_logprobs.take()},
            {"finish_reason", finish_json(choice.finish)}};
  }
  Json logprobs = nullptr;
  if (top_k >= 0) {
    logprobs = {{"content", chat_logprobs(tokenizer_, choice.chat_logprobs, top_k)}, {"refusal", nullptr}};
  }
  return {{"index", index},
          {"message", message_json(choice)},
          {"logprobs", std::move(logprobs)},
          {"finish_reason", finish_json(choice.finish, choice.parser ? &*choice.parser : nullptr)}};
}

Json WholeResponse::json(const RequestUsage& usage) {
  Json response = head(request_, request_.chat ? "chat.completion" : "text_completion", created_);
  response["choices"] = Json::array();
  for (size_t i = 0; i < choices_.size(); ++i) response["choices"].push_back(choice_json(i));
  response["usage"] = usage_of(request_, usage);
  response["timings"] = timings_json(usage);
  return response;
}

StreamResponse::StreamResponse(const ApiRequest& request, const Tokenizer& tokenizer)
    : request_(request),
      tokenizer_(tokenizer),
      created_(unix_time()),
      logprobs_(n_choices(request), legacy_logprobs(request, tokenizer)),
      shown_(n_choices(request),
             {tokenizer, generation(request).skip_special_tokens, generation(request).shown_special}),
      parsers_(request.chat ? n_choices(request) : 0, AnswerParser(request)),
      drafts_(request.include_drafts ? n_choices(request) : 0,
              DraftText(tokenizer, generation(request).skip_special_tokens, generation(request).shown_special)),
      started_(n_choices(request), false) {}

Json StreamResponse::chunk(Json choice) const {
  Json result = head(request_, request_.chat ? "chat.completion.chunk" : "text_completion", created_);
  result["choices"] = Json::array();
  if (!choice.is_null()) result["choices"].push_back(std::move(choice));
  if (request_.include_usage) result["usage"] = usage_;
  return result;
}

std::vector<Json> StreamResponse::start() {
  std::vector<Json> chunks;
  for (size_t i = 0; request_.chat && i < started_.size(); ++i) {
    chunks.push_back(chunk({{"index", i},
                            {"delta", {{"role", "assistant"}, {"content", ""}}},
                            {"logprobs", nullptr},
                            {"finish_reason", nullptr}}));
  }
  return chunks;
}

std::vector<Json> StreamResponse::add(const GenerationEvent& event, const GenerationRun& run) {
  throw_if_failed(event);
  if (request_.continuous_usage) usage_ = usage_of(request_, run.usage());
  return request_.chat ? add_chat(event) : add_completion(event, run);
}

Json StreamResponse::take_drafts(const GenerationEvent& event) {
  if (drafts_.empty()) return nullptr;
  Json pieces;
  for (const auto& [origin, text] : drafts_[static_cast<size_t>(event.choice)].take(event)) {
    pieces.push_back({{"origin", origin_name(origin)}, {"text", text}});
  }
  return pieces;
}

std::vector<Json> StreamResponse::deltas(const GenerationEvent& event) {
  std::vector<Json> result;
  for (const AnswerPiece& piece : parsers_[static_cast<size_t>(event.choice)].take(event)) {
    if (piece.call < 0) {
      const bool thinks = piece.text.empty();
      result.push_back({{thinks ? "reasoning_content" : "content", thinks ? piece.reasoning : piece.text}});
      continue;
    }
    Json call =
        piece.name.empty() ? Json{{"function", {{"arguments", piece.arguments}}}} : new_call(request_, piece.name);
    call["index"] = piece.call;
    result.push_back({{"tool_calls", Json::array({std::move(call)})}});
  }
  return result;
}

std::vector<Json> StreamResponse::add_chat(const GenerationEvent& event) {
  std::vector<Json> chunks;
  Json logprobs = nullptr;
  if (const auto shown = shown_[static_cast<size_t>(event.choice)].take(event); !shown.empty()) {
    logprobs = {{"content", chat_logprobs(tokenizer_, shown, generation(request_).logprobs)}, {"refusal", nullptr}};
  }
  Json drafts = take_drafts(event);
  std::vector<Json> parts = deltas(event);
  if (parts.empty() && !(logprobs.is_null() && drafts.is_null())) parts.push_back({{"content", ""}});
  for (Json& delta : parts) {
    chunks.push_back(chunk({{"index", event.choice},
                            {"delta", std::move(delta)},
                            {"logprobs", std::exchange(logprobs, nullptr)},
                            {"finish_reason", nullptr}}));
    if (!drafts.is_null()) chunks.back()["choices"][0]["drafts"] = std::exchange(drafts, nullptr);
  }
  if (event.finish != FinishReason::kNone) {
    chunks.push_back(
        chunk({{"index", event.choice},
               {"delta", Json::object()},
               {"logprobs", nullptr},
               {"finish_reason", finish_json(event.finish, &parsers_[static_cast<size_t>(event.choice)])}}));
  }
  return chunks;
}

std::vector<Json> StreamResponse::add_completion(const GenerationEvent& event, const GenerationRun& run) {
  const auto index = static_cast<size_t>(event.choice);
  std::string text = event.text;
  LegacyLogprobs& logprobs = logprobs_.at(index);
  if (!started_[index]) {
    started_[index] = true;
    text.insert(0, echo_text(request_, event.choice));
    add_prompt_logprobs(request_, event.choice, run, &logprobs);
  }
  for (const TokenLogprob& logprob : shown_[index].take(event)) logprobs.add(logprob);
  Json taken = logprobs.take(), drafts = take_drafts(event);
  if (text.empty() && taken.is_null() && drafts.is_null() && event.finish == FinishReason::kNone) return {};
  Json choice = {{"text", text},
                 {"index", event.choice},
                 {"logprobs", std::move(taken)},
                 {"finish_reason", finish_json(event.finish)}};
  if (!drafts.is_null()) choice["drafts"] = std::move(drafts);
  return {chunk(std::move(choice))};
}

std::vector<Json> StreamResponse::finish(const RequestUsage& usage) {
  if (!request_.include_usage) return {};
  Json last = chunk(nullptr);
  last["usage"] = usage_of(request_, usage);
  last["timings"] = timings_json(usage);
  return {std::move(last)};
}

}  // namespace smartkv::openai

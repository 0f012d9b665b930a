// POST /v1/chat/completions.
#include <algorithm>

#include "server/openai/api_request.h"
#include "server/openai/chat_prompt.h"
#include "server/openai/field_table.h"
#include "server/openai/harmony_reader.h"
#include "server/openai/output_format.h"
#include "server/openai/reasoning.h"

namespace smartkv::openai {

namespace {

void read_logprobs(FieldReader& fields, GenerationRequest* request) {
  const bool wanted = fields.boolean("logprobs");
  const auto top = static_cast<int32_t>(fields.integer("top_logprobs", -1));
  if (top >= 0 && !wanted) {
    throw invalid_request("top_logprobs", "'top_logprobs' is only allowed when 'logprobs' is true");
  }
  if (wanted) request->logprobs = std::max(top, 0);
}

// Reads max_completion_tokens, or max_tokens, its older name. If both are absent or -1, returns `room`, the tokens that
// the context has left, but at least 1.
int64_t read_chat_max_tokens(FieldReader& fields, int64_t room) {
  const int64_t older = read_max_tokens(fields, "max_tokens");
  const int64_t newer = read_max_tokens(fields, "max_completion_tokens");
  if (older > 0 && newer > 0 && older != newer) {
    throw invalid_request("max_tokens",
                          "'max_tokens' and 'max_completion_tokens' set the same limit to different values");
  }
  return std::max(older, newer) > 0 ? std::max(older, newer) : std::max<int64_t>(room, 1);
}

// Returns the grammar of the answer, made from the output format and the calls of tools. Sets `field` to the field that
// asked for it.
std::string read_grammar(FieldReader& fields, const ChatPrompt& prompt, std::string* field) {
  OutputFormat format = read_output_format(fields);
  *field = format.field;
  if (!prompt.tools || !prompt.tools->constrained) return format.grammar();
  const bool may_answer = prompt.tools->choice == ToolUse::Choice::kAuto;
  if (!format.text.empty() && may_answer) {
    throw invalid_request(format.field,
                          "'" + format.field + "' is not supported together with 'tools' and tool_choice \"auto\"");
  }
  const std::string root = add_tool_rules(*prompt.tools, may_answer ? format.root : "", &format.rules);
  if (field->empty()) *field = "tools";
  return format.rules.text(root);
}

// Sets the thinking of the answer and the special tokens that its parser needs to see.
void read_thinking(FieldReader& fields, const ChatPrompt& prompt, const Tokenizer& tokenizer,
                   GenerationRequest* generation) {
  const int64_t budget = read_thinking_budget(fields);
  generation->thinking = prompt.thinking;
  if (prompt.channels) generation->shown_special = special_tokens_in(kHarmonyMarks, tokenizer);
  if (prompt.tools) {
    for (const auto& [text, token] : prompt.tools->special) generation->shown_special.push_back(token);
  }
  if (!prompt.thinking) return;
  Thinking& thinking = *generation->thinking;
  if (thinking.budget < 0) thinking.budget = budget;
  const std::vector<TokenId> marks = special_tokens_in(thinking.open + thinking.close, tokenizer);
  generation->shown_special.insert(generation->shown_special.end(), marks.begin(), marks.end());
  // A grammar of Harmony's calls begins with the head of the message.
  if (prompt.channels && prompt.tools && prompt.tools->constrained) thinking.between.clear();
}

}  // namespace

ApiRequest parse_chat(std::string_view body, const ServedModel& model) { return read_chat(parse_body(body), model); }

ApiRequest read_chat(const Json& body, const ServedModel& model) {
  FieldReader fields(body, &body_schema(Body::kChat));
  ApiRequest request;
  request.chat = true;
  request.id = make_id("chatcmpl-");
  read_model(fields, model, &request);
  read_streaming(fields, &request);

  GenerationRequest generation;
  generation.id = request.id;
  read_generation(fields, model, &generation);
  read_logprobs(fields, &generation);
  read_table_fields(fields, Body::kChat);
  const ChatPrompt prompt = read_chat_prompt(fields, model);
  check_text_fits(prompt.text, "messages", model.engine);
  generation.prompt = encode_chat(model.engine.tokenizer(), prompt.text);
  generation.message_starts = message_starts(model.engine.tokenizer(), generation.prompt, prompt.message_ends);
  generation.grammar = read_grammar(fields, prompt, &request.format_field);
  read_thinking(fields, prompt, model.engine.tokenizer(), &generation);
  request.tools = prompt.tools;
  request.line_changes = prompt.line_changes;
  request.channels = prompt.channels;
  generation.max_tokens =
      read_chat_max_tokens(fields, model.engine.context_length() - static_cast<int64_t>(generation.prompt.size()));
  fields.finish();
  request.generations.push_back(std::move(generation));
  return request;
}

}  // namespace smartkv::openai

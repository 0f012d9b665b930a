#include "server/openai/chat_prompt.h"

#include <string.h>  // memmem

#include <algorithm>

#include "server/openai/chat_messages.h"
#include "server/openai/harmony_reader.h"
#include "server/openai/reasoning.h"

namespace smartkv::openai {

namespace {

// Renders the chat template. Throws ApiError.
std::string render(const Engine& engine, const Json& context) {
  const ChatTemplate* chat_template = engine.chat_template();
  if (chat_template == nullptr) {
    throw invalid_request("messages",
                          "This model has no chat template: use /v1/completions, or start the server with "
                          "--chat-template FILE");
  }
  try {
    return chat_template->render(context);
  } catch (const ChatTemplateError& error) {
    throw invalid_request("messages", std::string("The chat template refused the messages: ") + error.what());
  }
}

// Adds the variables that the request sets to the context of the template.
void read_variables(FieldReader& fields, const ReasoningForm* form, Json* context) {
  if (const Json effort = read_effort(fields, form); !effort.is_null()) context->update(effort);
  const Json* variables = fields.object("chat_template_kwargs");
  if (variables == nullptr) return;
  for (const char* reserved : {"messages", "tools", "add_generation_prompt"}) {
    if (!variables->contains(reserved)) continue;
    throw invalid_request("chat_template_kwargs", std::string("'chat_template_kwargs.") + reserved +
                                                      "' must be set by the request's field of that name");
  }
  context->update(*variables);
}

// gpt-oss' template reads the thinking from a field of its own, and refuses a call with both thinking and text.
void show_thinking(Json* messages) {
  for (Json& message : *messages) {
    const bool has_text = !message.contains("tool_calls") || message["content"] == "";
    if (message.contains("reasoning_content") && has_text) message["thinking"] = message["reasoning_content"];
  }
}

// Sets the form of calls, and which of its marks are special tokens.
void settle(ToolForm form, const Tokenizer& tokenizer, ToolUse* tools) {
  tools->settle(form);
  const std::string marks = form == ToolForm::kHarmony ? std::string(kHarmonyMarks) : form_marks(form);
  for (const TokenId token : special_tokens_in(marks, tokenizer)) {
    tools->special.emplace_back(tokenizer.token_bytes(token), token);
  }
}

// Returns whether the answer continues the last message. Sets whether the prompt opens the assistant's turn.
bool read_continuation(FieldReader& fields, const Json& messages, bool* opens_turn) {
  const bool by_assistant = messages.back()["role"] == "assistant" && !messages.back().contains("tool_calls");
  const bool asks_for_turn = fields.find("add_generation_prompt") != nullptr;
  const bool continues = fields.boolean("continue_final_message", by_assistant && !asks_for_turn);
  *opens_turn = fields.boolean("add_generation_prompt", !continues);
  if (continues && *opens_turn) {
    throw invalid_request("continue_final_message",
                          "'continue_final_message' and 'add_generation_prompt' cannot both be true");
  }
  if (continues && !by_assistant) {
    throw invalid_request("continue_final_message",
                          "'continue_final_message': expected an assistant's message at the end of 'messages'");
  }
  return continues;
}

// Returns the prompt up to the end of the last message's text. A mark appended to the text shows where it ends, even if
// the template writes the same text again later. The mark also keeps templates from trimming the text's trailing
// blanks.
std::string render_open_ended(const Engine& engine, Json context) {
  const std::string mark = make_id("ContinueHere");  // occurs nowhere else
  context["messages"].back()["content"].get_ref<std::string&>() += mark;
  std::string prompt = render(engine, context);
  const size_t end = prompt.rfind(mark);
  if (end == prompt.npos) throw invalid_request("messages", "The chat template does not show the message to continue");
  prompt.resize(end);
  return prompt;
}

// Returns the text with which a message ends: of a message of calls only, the name of the last one.
std::string_view last_text(const Json& message) {
  const auto content = message.find("content");
  if (content != message.end() && content->is_string() && !content->get_ref<const std::string&>().empty()) {
    return content->get_ref<const std::string&>();
  }
  if (!message.contains("tool_calls")) return "";
  return message["tool_calls"].back()["function"]["name"].get_ref<const std::string&>();
}

// Returns where the texts of the messages end in the rendered prompt. A text that the template has changed or left out
// ends where the one before it does.
std::vector<size_t> message_ends(std::string_view prompt, const Json& messages) {
  constexpr size_t kMostBetween = 4096;  // bytes of the template before a message, so that all searches are short
  std::vector<size_t> ends;
  size_t end = 0;
  for (const Json& message : messages) {
    const std::string_view text = last_text(message);
    if (!text.empty()) {
      const std::string_view rest = prompt.substr(end, text.size() + kMostBetween);
      const void* const found = ::memmem(rest.data(), rest.size(), text.data(), text.size());  // in linear time
      if (found != nullptr) end = static_cast<size_t>(static_cast<const char*>(found) - prompt.data()) + text.size();
    }
    ends.push_back(end);
  }
  return ends;
}

}  // namespace

std::vector<int64_t> message_starts(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
                                    const std::vector<size_t>& message_ends) {
  std::vector<int64_t> starts = {0};
  size_t bytes = 0, token = 0;
  for (size_t i = 0; i + 1 < message_ends.size(); ++i) {
    while (token < tokens.size() && bytes < message_ends[i]) bytes += tokenizer.token_bytes(tokens[token++]).size();
    starts.push_back(static_cast<int64_t>(token));
  }
  return starts;
}

Json template_context(const Engine& engine, const Json& messages, const Json& tools, bool add_generation_prompt) {
  const Tokenizer& tokenizer = engine.tokenizer();
  const auto content = [&](std::optional<TokenId> token) { return token ? tokenizer.token_content(*token) : ""; };
  return {{"messages", messages},
          {"tools", tools},
          {"documents", nullptr},
          {"add_generation_prompt", add_generation_prompt},
          {"bos_token", content(tokenizer.bos())},
          {"eos_token", content(tokenizer.eos())}};
}

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<TokenId> tokens = tokenizer.encode(prompt, {.add_special = false});
  if (tokens.empty()) throw invalid_request("messages", "The chat template turned the messages into an empty prompt");
  return tokens;
}

ChatPrompt read_chat_prompt(FieldReader& fields, const ServedModel& model) {
  const Engine& engine = model.engine;
  const Json* messages = fields.array("messages");
  if (messages == nullptr) throw invalid_request("messages", "'messages' is required");
  Json checked = read_messages(*messages);
  ChatPrompt prompt;
  prompt.line_changes = model.changing_lines.apply(&checked);
  prompt.tools = read_tool_use(fields);
  const bool about_tools = prompt.tools || std::any_of(checked.begin(), checked.end(), [](const Json& message) {
                             return message["role"] == "tool" || message.contains("tool_calls");
                           });
  Json shown;  // the tools that the template shows; null if there are none
  if (about_tools) {
    const ShownForm form = tool_form(engine);
    if (prompt.tools) settle(form.form, engine.tokenizer(), &*prompt.tools);
    if (form.form == ToolForm::kGeneric) {
      checked = plain_tool_messages(checked, prompt.tools ? &*prompt.tools : nullptr);
    } else if (prompt.tools && !form.explained) {
      explain_tools(*prompt.tools, &checked);
    }
    if (!form.shows_calls && form.form != ToolForm::kGeneric) write_calls(form.form, &checked);
    for (size_t i = 0; prompt.tools && form.explained && i < prompt.tools->functions.size(); ++i) {
      shown.push_back(prompt.tools->functions[i].declaration);
    }
  }
  const std::optional<ReasoningForm> form = reasoning_form(engine);
  prompt.channels = form && form->channels;
  if (prompt.channels) show_thinking(&checked);
  bool opens_turn = true;
  const bool continues = read_continuation(fields, checked, &opens_turn);
  Json context = template_context(engine, checked, shown, opens_turn);
  read_variables(fields, form ? &*form : nullptr, &context);
  const bool silent = context.value("enable_thinking", Json()) == false;
  prompt.text = continues ? render_open_ended(engine, std::move(context)) : render(engine, context);
  prompt.message_ends = message_ends(prompt.text, checked);
  if (form) {
    const std::string tail = continues ? checked.back()["content"].get<std::string>() : prompt.text;
    prompt.thinking = thinking_after(*form, tail, continues, engine.tokenizer());
    if (prompt.thinking && silent) prompt.thinking->budget = 0;  // the template cannot turn the thinking off
  }
  if (prompt.tools) prompt.text += call_opening(*prompt.tools);
  return prompt;
}

}  // namespace smartkv::openai

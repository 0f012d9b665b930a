// Chat templates: a strict, sandboxed interpreter of the Jinja subset that published LLaMA-family templates use.
// Source: the Jinja 3 template designer documentation; environment as Hugging Face transformers sets it up
// (trim_blocks, lstrip_blocks, raise_exception, strftime_now, tojson without HTML escapes).
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

#include "engine/text/chat_template_files.h"

namespace smartkv {

// Thrown when a template is parsed, for a construct that the interpreter does not support, with its line. Thrown when
// it is rendered, for raise_exception, a type error or an exceeded limit (steps, output bytes, recursion).
class ChatTemplateError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

// Limits of one render() call.
struct ChatTemplateLimits {
  // Each statement and each expression takes one step, plus steps for the data that it processes
  // (jinja::Value::steps()).
  int64_t max_steps = 1'000'000;
  int64_t max_output_bytes = 16 << 20;  // Bytes of the output, and of every string.
};

// Immutable after construction; render() may be called from several threads at once.
class ChatTemplate {
 public:
  // Parses `source`. Throws ChatTemplateError naming line and construct.
  explicit ChatTemplate(std::string_view source, ChatTemplateLimits limits = {});
  // Parses the templates "default" and "tool_use" of a model. "tool_use", if there is one, renders conversations with
  // tools, tool calls or their results. Throws ChatTemplateError. REQUIRES: files.sources has at least one of the two.
  explicit ChatTemplate(const ChatTemplateFiles& files, ChatTemplateLimits limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // Returns the text of the template. `context` is an object whose members become the variables of the template
  // (messages, tools, add_generation_prompt, bos_token, eos_token, ...). They override the variables of the files.
  // tojson keeps the order of members. `now` returns the time for strftime_now; if it is null, that is the current
  // local time. Throws ChatTemplateError.
  std::string render(const nlohmann::ordered_json& context, const std::function<std::tm()>& now = nullptr) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

// Returns the chat template of a model, or null if it has neither "default" nor "tool_use". Throws ChatTemplateError.
std::unique_ptr<ChatTemplate> make_chat_template(const ChatTemplateFiles& files);

}  // namespace smartkv

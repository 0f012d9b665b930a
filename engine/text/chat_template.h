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

// At load: a construct that the interpreter does not run, with its line. At render: raise_exception, a type error,
// or a limit (steps, output bytes, recursion).
class ChatTemplateError : public std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct ChatTemplateLimits {
  int64_t max_steps = 1'000'000;
  int64_t max_output_bytes = 16 << 20;
};

// Immutable after construction; render() may be called from several threads at once.
class ChatTemplate {
 public:
  // Parses `source`; throws ChatTemplateError naming line and construct.
  explicit ChatTemplate(std::string_view source, ChatTemplateLimits limits = {});
  // A model's templates "default" and "tool_use". The latter, if there is one, renders conversations with tools, tool calls or
  // their results. REQUIRES: files.sources has one of the two.
  explicit ChatTemplate(const ChatTemplateFiles& files, ChatTemplateLimits limits = {});
  ~ChatTemplate();
  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;

  // `context`: an object whose members become the template's variables (messages, tools, add_generation_prompt,
  // bos_token, eos_token, ...), over those of the files; member order is kept by tojson. `now` gives strftime_now its time.
  std::string render(const nlohmann::ordered_json& context, const std::function<std::tm()>& now = nullptr) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace smartkv

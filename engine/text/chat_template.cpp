#include "engine/text/chat_template.h"

#include <algorithm>
#include <optional>

#include "engine/text/jinja/eval.h"

namespace smartkv {
namespace {

bool is_about_tools(const nlohmann::ordered_json& context) {
  const auto tools = context.find("tools"), messages = context.find("messages");
  if (tools != context.end() && tools->is_array() && !tools->empty()) return true;
  return messages != context.end() &&
         std::any_of(messages->begin(), messages->end(), [](const nlohmann::ordered_json& message) {
           return message.is_object() &&
                  (message.contains("tool_calls") || message.value("role", nlohmann::ordered_json()) == "tool");
         });
}

std::optional<jinja::Block> parse(const ChatTemplateFiles& files, const char* name) {
  const auto source = files.sources.find(name);
  if (source == files.sources.end()) return std::nullopt;
  try {
    return jinja::parse(source->second);
  } catch (const ChatTemplateError& error) {
    throw ChatTemplateError("chat template \"" + std::string(name) + "\": " + error.what());
  }
}

}  // namespace

struct ChatTemplate::Impl {
  std::optional<jinja::Block> usual, tool_use;  // At least one of the two is set.
  std::map<std::string, std::string> variables;
  ChatTemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::string_view source, ChatTemplateLimits limits)
    : impl_(std::make_unique<Impl>(Impl{jinja::parse(source), std::nullopt, {}, limits})) {}
ChatTemplate::ChatTemplate(const ChatTemplateFiles& files, ChatTemplateLimits limits)
    : impl_(std::make_unique<Impl>(Impl{parse(files, "default"), parse(files, "tool_use"), files.variables, limits})) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& context, const std::function<std::tm()>& now) const {
  const std::optional<jinja::Block>& block =
      impl_->tool_use && is_about_tools(context) ? impl_->tool_use : impl_->usual;
  if (!block) throw ChatTemplateError("the model's only chat template, \"tool_use\", needs a conversation with tools");
  return jinja::render(*block, context, impl_->variables, impl_->limits, now);
}

std::unique_ptr<ChatTemplate> make_chat_template(const ChatTemplateFiles& files) {
  const bool usable = files.sources.contains("default") || files.sources.contains("tool_use");
  return usable ? std::make_unique<ChatTemplate>(files) : nullptr;
}

}  // namespace smartkv

#include "engine/text/chat_template.h"

#include "engine/text/jinja/eval.h"

namespace smartkv {

struct ChatTemplate::Impl {
  jinja::Block block;
  ChatTemplateLimits limits;
};

ChatTemplate::ChatTemplate(std::string_view source, ChatTemplateLimits limits)
    : impl_(std::make_unique<Impl>(Impl{jinja::parse(source), limits})) {}
ChatTemplate::~ChatTemplate() = default;
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;

std::string ChatTemplate::render(const nlohmann::ordered_json& context, const std::function<std::tm()>& now) const {
  return jinja::render(impl_->block, context, impl_->limits, now);
}

}  // namespace smartkv

// Runs a parsed template.
#pragma once

#include <ctime>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/chat_template.h"
#include "engine/text/jinja/ast.h"

namespace smartkv::jinja {

// Throws ChatTemplateError with the line of the fault.
std::string render(const Block& block, const nlohmann::ordered_json& context, const ChatTemplateLimits& limits,
                   const std::function<std::tm()>& now);

}  // namespace smartkv::jinja

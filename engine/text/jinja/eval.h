// Runs a parsed template.
#pragma once

#include <ctime>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "engine/text/chat_template.h"
#include "engine/text/jinja/ast.h"

namespace smartkv::jinja {

// Returns the text of a template. The members of `context` are its variables; `variables` are further ones, which the
// context overrides. Throws ChatTemplateError with the line of the fault.
std::string render(const Block& block, const nlohmann::ordered_json& context,
                   const std::map<std::string, std::string>& variables, const ChatTemplateLimits& limits,
                   const std::function<std::tm()>& now);

}  // namespace smartkv::jinja

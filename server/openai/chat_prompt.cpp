#include "server/openai/chat_prompt.h"

#include "server/openai/chat_messages.h"

namespace smartkv::openai {

namespace {

// `variables`: further members of the template's context, or null.
std::string render(const Engine& engine, const Json& messages, const Json& tools, bool add_generation_prompt,
                   const Json& variables) {
  const ChatTemplate* chat_template = engine.chat_template();
  if (chat_template == nullptr) {
    throw invalid_request("messages", "This model has no chat template: use /v1/completions, or start the server with "
                                      "--chat-template FILE");
  }
  const Tokenizer& tokenizer = engine.tokenizer();
  const auto content = [&](std::optional<TokenId> token) { return token ? tokenizer.token_content(*token) : ""; };
  Json context = {{"messages", messages},
                  {"tools", tools},
                  {"add_generation_prompt", add_generation_prompt},
                  {"bos_token", content(tokenizer.bos())},
                  {"eos_token", content(tokenizer.eos())}};
  if (variables.is_object()) context.update(variables);
  try {
    return chat_template->render(context);
  } catch (const ChatTemplateError& error) {
    throw invalid_request("messages", std::string("The chat template refused the messages: ") + error.what());
  }
}

}  // namespace

std::vector<TokenId> encode_chat(const Tokenizer& tokenizer, const std::string& prompt) {
  std::vector<TokenId> tokens = tokenizer.encode(prompt, {.add_special = false});
  if (tokens.empty()) throw invalid_request("messages", "The chat template made an empty prompt of the messages");
  return tokens;
}

std::string read_chat_prompt(FieldReader& fields, const Engine& engine) {
  const Json* messages = fields.array("messages");
  if (messages == nullptr) throw invalid_request("messages", "'messages' is required");
  const Json checked = read_messages(*messages);

  const Json* tools = fields.array("tools");
  fields.only_default("tool_choice", {"auto", "none"});
  const Json* choice = fields.find("tool_choice");
  const bool use_tools = tools != nullptr && !tools->empty() && (choice == nullptr || *choice == "auto");
  const Json checked_tools = tools == nullptr ? Json() : read_tools(*tools);

  const bool add_generation_prompt = fields.boolean("add_generation_prompt", true);
  const Json* variables = fields.object("chat_template_kwargs");
  if (variables != nullptr) {
    for (const char* reserved : {"messages", "tools", "add_generation_prompt"}) {
      if (variables->contains(reserved)) {
        throw invalid_request("chat_template_kwargs",
                              std::string("'chat_template_kwargs.") + reserved + "' is set by a field of its own");
      }
    }
  }
  return render(engine, checked, use_tools ? checked_tools : Json(), add_generation_prompt,
                variables == nullptr ? Json() : *variables);
}

}  // namespace smartkv::openai

#include "server/openai/tokenize.h"

#include "server/openai/chat_prompt.h"
#include "server/openai/logprobs.h"

namespace smartkv::openai {

Json tokenize(std::string_view body, const ServedModel& model) {
  const Json json = parse_body(body);
  FieldReader fields(json);
  ApiRequest request;
  read_model(fields, model, &request);
  const Tokenizer& tokenizer = model.engine.tokenizer();
  const bool add_special = fields.boolean("add_special_tokens", true);
  const bool with_texts = fields.boolean("return_token_strs", false);
  std::vector<TokenId> tokens;
  if (const auto prompt = fields.string("prompt")) {
    if (fields.find("messages") != nullptr) {
      throw invalid_request("messages", "'prompt' and 'messages' exclude each other");
    }
    tokens = tokenizer.encode(*prompt, {.add_special = add_special});
  } else if (fields.find("messages") != nullptr) {
    tokens = encode_chat(tokenizer, read_chat_prompt(fields, model.engine).text);
  } else {
    throw invalid_request("prompt", "'prompt' or 'messages' is required");
  }
  fields.finish();
  Json result = {{"count", tokens.size()}, {"max_model_len", model.engine.context_length()}, {"tokens", tokens}};
  if (with_texts) {
    result["token_strs"] = Json::array();
    for (const TokenId token : tokens) result["token_strs"].push_back(token_text(tokenizer, token));
  }
  return result;
}

Json detokenize(std::string_view body, const ServedModel& model) {
  const Json json = parse_body(body);
  FieldReader fields(json);
  ApiRequest request;
  read_model(fields, model, &request);
  const Json* ids = fields.array("tokens");
  fields.finish();
  if (ids == nullptr) throw invalid_request("tokens", "'tokens' is required");
  const Tokenizer& tokenizer = model.engine.tokenizer();
  return {{"prompt", tokenizer.decode(read_token_ids(*ids, "tokens", tokenizer), false)}};
}

}  // namespace smartkv::openai

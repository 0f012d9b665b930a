#include "server/openai/tokenize.h"

#include "server/openai/chat_prompt.h"
#include "server/openai/field_table.h"
#include "server/openai/logprobs.h"

namespace smartkv::openai {

namespace {

// {content, add_special, parse_special, with_pieces} -> {tokens}. Each token is an id, or {id, piece} with with_pieces.
Json tokenize_content(FieldReader& fields, const Tokenizer& tokenizer) {
  const std::string content = fields.string("content").value_or("");
  const EncodeOptions options{.add_special = fields.boolean("add_special", false),
                              .parse_special = fields.boolean("parse_special", true)};
  const bool with_pieces = fields.boolean("with_pieces", false);
  fields.finish();
  const std::vector<TokenId> tokens = tokenizer.encode(content, options);
  if (!with_pieces) return {{"tokens", tokens}};
  Json pieces = Json::array();
  for (const TokenId token : tokens) pieces.push_back({{"id", token}, {"piece", token_text(tokenizer, token)}});
  return {{"tokens", std::move(pieces)}};
}

}  // namespace

Json tokenize(std::string_view body, const ServedModel& model) {
  const Json json = parse_body(body);
  FieldReader fields(json, &body_schema(Body::kTokenize));
  ApiRequest request;
  read_model(fields, model, &request);
  const Tokenizer& tokenizer = model.engine.tokenizer();
  if (fields.find("content") != nullptr) return tokenize_content(fields, tokenizer);
  const bool add_special = fields.boolean("add_special_tokens", true);
  const bool with_texts = fields.boolean("return_token_strs", false);
  std::vector<TokenId> tokens;
  if (const auto prompt = fields.string("prompt")) {
    if (fields.find("messages") != nullptr) {
      throw invalid_request("messages", "'prompt' and 'messages' cannot be used together");
    }
    tokens = tokenizer.encode(*prompt, {.add_special = add_special});
  } else if (fields.find("messages") != nullptr) {
    tokens = encode_chat(tokenizer, read_chat_prompt(fields, model).text);
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
  FieldReader fields(json, &body_schema(Body::kDetokenize));
  ApiRequest request;
  read_model(fields, model, &request);
  const Json* ids = fields.array("tokens");
  fields.finish();
  if (ids == nullptr) throw invalid_request("tokens", "'tokens' is required");
  const Tokenizer& tokenizer = model.engine.tokenizer();
  const std::string text = tokenizer.decode(read_token_ids(*ids, "tokens", tokenizer), false);
  return {{"prompt", text}, {"content", text}};
}

Json tokenizer_info(const Tokenizer& tokenizer) {
  const auto content = [&](std::optional<TokenId> token) {
    return token ? Json(tokenizer.token_content(*token)) : Json(nullptr);
  };
  return {{"bos_token", content(tokenizer.bos())}, {"eos_token", content(tokenizer.eos())}};
}

}  // namespace smartkv::openai

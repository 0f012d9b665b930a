#include "server/openai/field_table.h"

#include <algorithm>
#include <sstream>

namespace smartkv::openai {

namespace {

using Type = Json::value_t;

void read_idle(FieldReader& fields, const std::string& name, Type type) {
  switch (type) {
    case Type::string: fields.string(name); return;
    case Type::boolean: fields.boolean(name, false); return;
    case Type::object: fields.object(name); return;
    default: fields.find(name); return;
  }
}

}  // namespace

bool FieldRow::is_of(Body body) const { return std::find(bodies.begin(), bodies.end(), body) != bodies.end(); }

const std::vector<FieldRow>& field_table() {
  using enum FieldUse;
  const std::vector<Body> chat = {Body::kChat}, completions = {Body::kCompletions}, responses = {Body::kResponses},
                          texts = {Body::kChat, Body::kCompletions}, turns = {Body::kChat, Body::kResponses},
                          all = {Body::kChat, Body::kCompletions, Body::kResponses};
  static const std::vector<FieldRow> table = {
      {"model, stream, stop, seed, temperature, top_p, presence_penalty, frequency_penalty", kHonoured, all},
      {"n, logit_bias", kHonoured, texts},
      {"messages", kHonoured, chat, "text only; tool calls and results; `reasoning_content` reaches the template"},
      {"prompt", kHonoured, completions, "a text, token ids, or a list of both"},
      {"input", kHonoured, responses, "a text, or a list of messages, function calls, their outputs and reasoning; "
                                      "text only"},
      {"instructions", kHonoured, responses},
      {"max_tokens", kHonoured, texts, "-1 for as many tokens as the context has room for"},
      {"max_completion_tokens, top_logprobs", kHonoured, chat},
      {"max_output_tokens", kHonoured, responses, "-1 for as many tokens as the context has room for"},
      {"logprobs", kHonoured, texts},
      {"echo", kHonoured, completions},
      {"stream_options", kHonoured, texts, "`include_usage`, `continuous_usage_stats`, `include_drafts` ([drafts](#drafts-in-a-stream))"},
      {"stream_options", kHonoured, responses, "`include_obfuscation` has no effect: chunks are not padded"},
      {"response_format", kHonoured, texts, "`text`, `json_object`, `json_schema`"},
      {"text", kHonoured, responses, "`format`: as `response_format`; `verbosity`: only `medium`"},
      {"json_schema, grammar, regex, choice, structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar",
       kHonoured, texts, "one of them, or `response_format`"},
      {"reasoning", kHonoured, responses, "`effort`: only `none`; `summary` has no effect"},
      {"include", kHonoured, responses, "`reasoning.encrypted_content` and other parts of items that this server never "
                                        "produces"},
      {"tools, tool_choice, parallel_tool_calls", kHonoured, turns, "functions"},
      {"add_generation_prompt, continue_final_message, chat_template_kwargs", kHonoured, chat},
      {"add_special_tokens", kHonoured, completions},
      {"top_k, min_p, repetition_penalty, min_tokens, ignore_eos", kHonoured, all},
      {"stop_token_ids, skip_special_tokens", kHonoured, texts},
      {"kv_cache, speculative, cache_salt", kHonoured, all},
      {"store", kIdle, turns, "nothing is stored", {}, Type::boolean},
      {"metadata", kIdle, all, "", {}, Type::object},
      {"user, safety_identifier, prompt_cache_key, service_tier", kIdle, all, "", {}, Type::string},
      {"request_id", kIdle, texts, "", {}, Type::string},
      {"prompt_cache_retention", kIdle, chat, "", {}, Type::string},
      {"cache_prompt", kIdle, texts, "computed prompts are shared in any case", {}, Type::boolean},
      {"previous_response_id, conversation", kNeutral, responses,
       "nothing is stored, so send previous turns in `input`"},
      {"background", kNeutral, responses, "", {false}},
      {"truncation", kNeutral, responses, "", {"disabled"}},
      {"top_logprobs", kNeutral, responses, "", {0}},
      {"prompt, max_tool_calls, context_management", kNeutral, responses},
      {"best_of", kNeutral, completions, "`1` and the value of `n` are also accepted"},
      {"suffix", kNeutral, completions, "", {""}},
      {"audio, prediction, web_search_options", kNeutral, chat},
      {"modalities", kNeutral, chat, "", {Json::array({"text"})}},
      {"reasoning_effort", kNeutral, chat, "", {"none"}},
      {"verbosity", kNeutral, chat, "", {"medium"}},
      {"functions", kNeutral, chat, "use `tools`", {Json::array()}},
      {"function_call", kNeutral, chat, "use `tool_choice`", {"none"}},
      {"guided_decoding_backend", kNeutral, texts, "", {"auto", "xgrammar"}},
      {"use_beam_search, include_stop_str_in_output, return_tokens_as_token_ids", kNeutral, texts, "", {false}},
      {"detokenize, spaces_between_special_tokens", kNeutral, texts, "", {true}},
      {"length_penalty, typical_p", kNeutral, texts, "", {1}},
      {"repeat_last_n", kNeutral, texts, "`repetition_penalty` looks at all tokens", {-1}},
      {"priority", kNeutral, texts, "", {0}},
      {"bad_words, logits_processors, allowed_token_ids, truncate_prompt_tokens, prompt_logprobs", kNeutral, texts, "",
       {Json::array()}},
  };
  return table;
}

std::vector<std::string> field_names(const FieldRow& row) {
  std::vector<std::string> result;
  std::istringstream in{std::string(row.names)};
  for (std::string name; in >> name;) {
    if (name.ends_with(',')) name.pop_back();
    result.push_back(name);
  }
  return result;
}

void read_table_fields(FieldReader& fields, Body body) {
  for (const FieldRow& row : field_table()) {
    if (row.use == FieldUse::kHonoured || !row.is_of(body)) continue;
    for (const std::string& name : field_names(row)) {
      if (name == "best_of") continue;  // its neutral value is n, so the parser of completions reads it
      if (row.use == FieldUse::kIdle) {
        read_idle(fields, name, row.type);
      } else {
        fields.only_default(name, row.neutral);
      }
    }
  }
}

std::string field_table_markdown() {
  std::string text = "| field | chat | completions | responses | |\n|---|---|---|---|---|\n";
  for (const FieldRow& row : field_table()) {
    std::string names;
    for (const std::string& name : field_names(row)) names.append(names.empty() ? "`" : ", `").append(name).append("`");
    std::string note(row.note);
    if (row.use == FieldUse::kIdle) {
      note = std::string("accepted, without effect on the answer") + (note.empty() ? "" : ": ") + note;
    }
    if (row.use == FieldUse::kNeutral) {
      std::string values;
      for (const Json& value : row.neutral) values.append(values.empty() ? "" : ", ").append("`").append(dump(value)).append("`");
      note = "not supported: any value except " + (values.empty() ? std::string("null") : values) + " is a 400" +
             (note.empty() ? "" : "; ") + note;
    }
    text += "| " + names;
    for (const Body body : {Body::kChat, Body::kCompletions, Body::kResponses}) text += row.is_of(body) ? " | yes" : " |";
    text += " | " + note + " |\n";
  }
  return text;
}

}  // namespace smartkv::openai

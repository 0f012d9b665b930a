#include "server/openai/field_table.h"

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

const std::vector<FieldRow>& field_table() {
  using enum FieldUse;
  static const std::vector<FieldRow> table = {
      {"model, stream, n, stop, seed, temperature, top_p, presence_penalty, frequency_penalty, logit_bias", kHonoured},
      {"messages", kHonoured, true, false, "text only; tool calls and results; `reasoning_content` reaches the template"},
      {"prompt", kHonoured, false, true, "a text, token ids, or a list of both"},
      {"max_tokens", kHonoured, true, true, "-1: what the context has room for"},
      {"max_completion_tokens, top_logprobs", kHonoured, true, false},
      {"logprobs", kHonoured},
      {"echo", kHonoured, false, true},
      {"stream_options", kHonoured, true, true, "`include_usage`, `continuous_usage_stats`"},
      {"response_format", kHonoured, true, true, "`text`, `json_object`, `json_schema`"},
      {"json_schema, grammar, regex, choice, structured_outputs, guided_json, guided_regex, guided_choice, guided_grammar",
       kHonoured, true, true, "one of them, or `response_format`"},
      {"tools, tool_choice, parallel_tool_calls", kHonoured, true, false, "functions"},
      {"add_generation_prompt, continue_final_message, chat_template_kwargs", kHonoured, true, false},
      {"add_special_tokens", kHonoured, false, true},
      {"top_k, min_p, repetition_penalty, min_tokens, ignore_eos, stop_token_ids, skip_special_tokens", kHonoured},
      {"kv_cache, speculative, cache_salt", kHonoured},
      {"store", kIdle, true, false, "nothing is stored", {}, Type::boolean},
      {"metadata", kIdle, true, true, "", {}, Type::object},
      {"user, safety_identifier, prompt_cache_key, service_tier, request_id", kIdle, true, true, "", {}, Type::string},
      {"prompt_cache_retention", kIdle, true, false, "", {}, Type::string},
      {"cache_prompt", kIdle, true, true, "computed prompts are shared in any case", {}, Type::boolean},
      {"best_of", kNeutral, false, true, "`n` at most: more would be generated and thrown away"},
      {"suffix", kNeutral, false, true, "", {""}},
      {"audio, prediction, web_search_options", kNeutral, true, false},
      {"modalities", kNeutral, true, false, "", {Json::array({"text"})}},
      {"reasoning_effort", kNeutral, true, false, "", {"none"}},
      {"verbosity", kNeutral, true, false, "", {"medium"}},
      {"functions", kNeutral, true, false, "use `tools`", {Json::array()}},
      {"function_call", kNeutral, true, false, "use `tool_choice`", {"none"}},
      {"guided_decoding_backend", kNeutral, true, true, "", {"auto", "xgrammar"}},
      {"use_beam_search, include_stop_str_in_output, return_tokens_as_token_ids", kNeutral, true, true, "", {false}},
      {"detokenize, spaces_between_special_tokens", kNeutral, true, true, "", {true}},
      {"length_penalty, typical_p, repeat_last_n", kNeutral, true, true, "", {1, -1}},
      {"priority", kNeutral, true, true, "", {0}},
      {"bad_words, logits_processors, allowed_token_ids, truncate_prompt_tokens, prompt_logprobs", kNeutral, true, true, "",
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

void read_table_fields(FieldReader& fields, bool chat) {
  for (const FieldRow& row : field_table()) {
    if (row.use == FieldUse::kHonoured || !(chat ? row.chat : row.completions)) continue;
    for (const std::string& name : field_names(row)) {
      if (name == "best_of") continue;  // its neutral value is n, which its endpoint reads
      if (row.use == FieldUse::kIdle) {
        read_idle(fields, name, row.type);
      } else {
        fields.only_default(name, row.neutral);
      }
    }
  }
}

std::string field_table_markdown() {
  std::string text = "| field | chat | completions | |\n|---|---|---|---|\n";
  for (const FieldRow& row : field_table()) {
    std::string names;
    for (const std::string& name : field_names(row)) names.append(names.empty() ? "`" : ", `").append(name).append("`");
    std::string note(row.note);
    if (row.use == FieldUse::kIdle) note = std::string("taken, without effect on the answer") + (note.empty() ? "" : ": ") + note;
    if (row.use == FieldUse::kNeutral) {
      std::string values;
      for (const Json& value : row.neutral) values.append(values.empty() ? "" : ", ").append("`").append(dump(value)).append("`");
      note = "not supported: 400, but for " + (values.empty() ? std::string("null") : values) + (note.empty() ? "" : "; ") + note;
    }
    text.append("| ").append(names).append(row.chat ? " | yes" : " | ").append(row.completions ? " | yes | " : " | | ").append(note).append(" |\n");
  }
  return text;
}

}  // namespace smartkv::openai

#include "engine/text/end_tokens.h"

namespace smartkv {
namespace {

// Tokens that end an answer in every vocabulary that has them.
constexpr std::initializer_list<const char*> kEnds = {
    // ends of turns, messages and calls
    "<|eot_id|>", "<|im_end|>", "<|end|>", "<|return|>", "<|call|>", "<|flush|>", "<|calls|>", "<end_of_turn>",
    "<|eom_id|>", "<EOT>", "_<EOT>", "[EOT]", "<end_of_utterance>", "<turn|>", "<|tool_response>",
    // ends of texts
    "<|endoftext|>", "</s>", "[EOS]", "<|end_of_text|>", "<eos>", "<｜end▁of▁sentence｜>", "[e~["};
constexpr std::initializer_list<const char*> kFillPads = {"<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"};
constexpr std::initializer_list<const char*> kRepositories = {"<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>",
                                                              "<reponame>"};
constexpr std::initializer_list<const char*> kSeparators = {"<|file_sep|>"};

}  // namespace

std::set<TokenId> find_end_tokens(const std::function<std::optional<TokenId>(std::string_view)>& find,
                                  std::optional<TokenId> eos, const NamedEnds& named) {
  std::set<TokenId> ends;
  const auto add = [&](std::optional<TokenId> token) {
    if (token) ends.insert(*token);
  };
  const auto add_one_of = [&](std::optional<TokenId> token, std::initializer_list<const char*> names) {
    for (const char* name : names) {
      if (!token) token = find(name);
    }
    add(token);
  };
  const auto ends_with = [&](const char* name) {
    const auto token = find(name);
    return token && ends.contains(*token);
  };
  const auto remove = [&](const char* name) {
    if (const auto token = find(name)) ends.erase(*token);
  };
  for (const char* name : kEnds) add(find(name));
  add_one_of(named.fill_pad, kFillPads);
  add_one_of(named.repository, kRepositories);
  add_one_of(named.separator, kSeparators);
  for (const auto& token : {eos, named.turn, named.message}) add(token);
  // In OpenAI's Harmony format and in Solar's, <|end|> ends a message. Other tokens end the answer.
  const bool harmony = ends_with("<|return|>") && (ends_with("<|call|>") || ends_with("<|calls|>"));
  const bool solar = ends_with("<|flush|>") && (ends_with("<|call|>") || ends_with("<|calls|>"));
  if (harmony || solar) remove("<|end|>");
  // In these vocabularies </s> is text.
  if (ends_with("<|tool_response>") || ends_with("<|plamo:eos|>")) remove("</s>");
  return ends;
}

std::set<TokenId> end_tokens(const Tokenizer& tokenizer, const ModelConfig& config, int64_t vocabulary) {
  std::set<TokenId> tokens = tokenizer.end_tokens();
  if (tokenizer.eos()) tokens.insert(*tokenizer.eos());
  tokens.insert(config.eos_token_ids.begin(), config.eos_token_ids.end());
  std::erase_if(tokens, [vocabulary](TokenId token) { return token < 0 || token >= vocabulary; });
  return tokens;
}

}  // namespace smartkv

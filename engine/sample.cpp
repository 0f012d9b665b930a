#include "engine/sample.h"

#include <bit>

namespace smartkv {
namespace {

// Returns whether any token besides `tokens` may come next. `allowed` is as in SamplingInput. REQUIRES: `tokens` are
// distinct.
bool allows_more(std::span<const uint32_t> allowed, std::span<const TokenId> tokens, int64_t vocabulary) {
  if (allowed.empty()) return vocabulary > std::ssize(tokens);
  int64_t others = 0;
  for (const uint32_t word : allowed) others += std::popcount(word);
  for (const TokenId token : tokens) others -= allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1;
  return others > 0;
}

// Returns the tokens that may not come at output index `position` although `allowed` has them. Before min_tokens these
// are the tokens that end the text, unless no other token may come.
std::span<const TokenId> forbidden_at(const Request& request, int64_t position, std::span<const uint32_t> allowed,
                                      int64_t vocabulary) {
  if (position >= request.generation.min_tokens || !allows_more(allowed, request.stop_tokens, vocabulary)) return {};
  return request.stop_tokens;
}

// Returns the parameters for sampling the token at output index `position`.
SamplingInput input_at(const Request& request, Sequence* choice, int64_t position, const TokenHistory& history,
                       int64_t vocabulary) {
  SamplingInput input{request.generation.sampling, history};
  if (choice->constraint != nullptr) input.allowed = choice->constraint->allowed();
  input.forbidden = forbidden_at(request, position, input.allowed, vocabulary);
  return input;
}

TokenNoise noise_at(const Request& request, const Sequence& choice, int64_t position) {
  return {request.seed, static_cast<uint32_t>(choice.index), static_cast<uint64_t>(position)};
}

// Adds the text of the token to the event. Sets the event's `finish` if the choice ends with this token.
void add_text(const Request& request, Sequence* choice, TokenId token, GenerationEvent* event) {
  const bool stop_token = std::binary_search(request.stop_tokens.begin(), request.stop_tokens.end(), token);
  std::string text = stop_token ? std::string() : choice->decoder.push(token);
  if (stop_token) {
    event->finish = FinishReason::kStop;
  } else if (choice->n_output >= request.max_tokens) {
    event->finish = FinishReason::kLength;
  }
  if (event->finish != FinishReason::kNone) text += choice->decoder.flush();
  const bool thinks = choice->constraint != nullptr && choice->constraint->thinking();
  if (choice->n_output < request.generation.min_tokens || thinks) {  // stop strings do not count yet
    event->text += choice->stop.flush() + text;
    return;
  }
  event->text += choice->stop.push(text);
  if (choice->stop.matched()) {
    event->finish = FinishReason::kStop;
    event->stop_string = choice->stop.matched();
  } else if (event->finish != FinishReason::kNone) {
    event->text += choice->stop.flush();
  }
}

// Returns whether the token may come next. If so, the choice's constraint has accepted it. The mask may allow a token
// that the grammar then refuses: one that is longer than the rest of a counted repetition.
bool accepts(const Request& request, Sequence* choice, TokenId token) {
  if (choice->constraint == nullptr) return true;
  return std::binary_search(request.stop_tokens.begin(), request.stop_tokens.end(), token) ||
         choice->constraint->accept(token);
}

// Samples the next token. If the grammar refuses the token, removes it from the mask and samples again with the same
// noise.
TokenId draw_token(const Request& request, Sequence* choice, std::span<const float> logits, Sampler* sampler) {
  const int64_t vocabulary = std::ssize(logits);
  SamplingInput input = input_at(request, choice, choice->n_output, choice->history, vocabulary);
  std::vector<uint32_t> mask;
  for (;;) {
    const TokenId token = sampler->sample(logits, input, noise_at(request, *choice, choice->n_output));
    if (accepts(request, choice, token)) return token;
    if (mask.empty()) mask.assign(input.allowed.begin(), input.allowed.end());
    mask[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
    input.allowed = mask;
    input.forbidden = forbidden_at(request, choice->n_output, mask, vocabulary);
  }
}

}  // namespace

TokenId sample_at(const Request& request, Sequence* choice, int64_t position, const TokenHistory& history,
                  std::span<const float> logits, Sampler* sampler) {
  const SamplingInput input = input_at(request, choice, position, history, std::ssize(logits));
  return sampler->sample(logits, input, noise_at(request, *choice, position));
}

std::optional<kernels::DeviceSample> draw_on_device(const Request& request, Sequence* choice, int64_t n_logits,
                                                    int64_t vocabulary) {
  const GenerationRequest& generation = request.generation;
  const bool several = n_logits > 1;                             // a draft to verify, or a prompt's log probabilities
  const bool forks = choice->n_output == 0 && generation.n > 1;  // the other choices sample from the same row
  const bool prompt_logprobs = choice->n_output == 0 && generation.prompt_logprobs >= 0;
  if (several || forks || prompt_logprobs || generation.logprobs >= 0 || choice->samples_on_host) return std::nullopt;
  const int64_t position = choice->n_output;
  const SamplingInput input = input_at(request, choice, position, choice->history, vocabulary);
  return device_sample(input, noise_at(request, *choice, position), vocabulary);
}

GenerationEvent sample_round(const Request& request, Sequence* choice, const float* logits, int64_t row_stride,
                             int64_t vocabulary, const kernels::DeviceSample* drawn, SamplingScratch* scratch) {
  const GenerationRequest& generation = request.generation;
  GenerationEvent event;
  event.choice = choice->index;
  if (choice->draft != nullptr && !choice->draft->draft.empty()) event.drafts.push_back({0, 0, choice->draft->draft});
  bool goes_on = true;
  for (size_t row = 0; goes_on; ++row, logits += row_stride) {
    const std::span<const float> row_logits(logits, static_cast<size_t>(vocabulary));
    const TokenId token =
        drawn != nullptr ? drawn_token(*drawn) : draw_token(request, choice, row_logits, &scratch->sampler);
    if (drawn != nullptr && !accepts(request, choice, token)) {
      choice->samples_on_host = true;
      return event;
    }
    const bool accepted =
        !event.drafts.empty() && row < event.drafts[0].tokens.size() && event.drafts[0].tokens[row] == token;
    event.tokens.push_back(token);
    if (accepted) ++event.drafts[0].accepted;
    if (generation.logprobs >= 0) {
      scratch->logprobs.assign(row_logits);
      event.logprobs.push_back(scratch->logprobs.of(token, generation.logprobs));
    }
    ++choice->n_output;
    choice->tokens.push_back(token);
    if (needs_history(generation.sampling)) choice->history.add_output(token);
    add_text(request, choice, token, &event);
    goes_on = accepted && event.finish == FinishReason::kNone;
  }
  choice->input.assign(1, event.tokens.back());
  return event;
}

void add_prompt_logprobs(Request* request, int64_t first, const float* logits, int64_t n_rows, int64_t row_stride,
                         int64_t vocabulary, SamplingScratch* scratch) {
  const std::vector<TokenId>& prompt = request->generation.prompt;
  const auto known = static_cast<int64_t>(request->prompt_logprobs.size());  // tokens [1, known] have theirs
  for (int64_t row = std::max<int64_t>(0, known - first); row < n_rows; ++row) {
    const auto next = static_cast<size_t>(first + row + 1);
    if (next >= prompt.size()) break;
    scratch->logprobs.assign({logits + row * row_stride, static_cast<size_t>(vocabulary)});
    request->prompt_logprobs.push_back(scratch->logprobs.of(prompt[next], request->generation.prompt_logprobs));
  }
}

}  // namespace smartkv

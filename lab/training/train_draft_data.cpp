#include "lab/training/train_draft_data.h"

#include <torch/torch.h>

#include <algorithm>
#include <cmath>

#include "engine/model/llama.h"
#include "engine/model/policy_context.h"
#include "engine/sampling/logprobs.h"
#include "kernels/random.h"

namespace smartkv {
namespace {

constexpr int64_t kReadChunk = 64;  // rows of logits held at a time

// Returns the token at quantile u, in [0, 1), of the distribution `probability` at this temperature.
TokenId draw(std::span<const TokenId> top, std::span<const float> probability, double temperature, double u) {
  if (temperature <= 0) return top[0];
  std::vector<double> weight(top.size());
  double total = 0;
  for (size_t i = 0; i < top.size(); ++i) {
    weight[i] = std::pow(static_cast<double>(probability[i]), 1 / temperature);
    total += weight[i];
  }
  u *= total;
  for (size_t i = 0; i < top.size(); ++i) {
    if ((u -= weight[i]) < 0) return top[i];
  }
  return top[0];
}

torch::Tensor pack(const std::vector<int64_t>& values) { return torch::tensor(values, torch::kInt64); }

// Appends a set of sequences as four tensors: pairs of length and `first`, tokens, top, probability.
void append(const std::vector<TaughtSequence>& set, std::vector<torch::Tensor>* tensors) {
  std::vector<int64_t> shape;
  std::vector<TokenId> tokens, top;
  std::vector<float> probability;
  for (const TaughtSequence& sequence : set) {
    shape.push_back(static_cast<int64_t>(sequence.tokens.size()));
    shape.push_back(sequence.first);
    tokens.insert(tokens.end(), sequence.tokens.begin(), sequence.tokens.end());
    top.insert(top.end(), sequence.top.begin(), sequence.top.end());
    probability.insert(probability.end(), sequence.probability.begin(), sequence.probability.end());
  }
  tensors->push_back(pack(shape));
  tensors->push_back(torch::tensor(tokens, torch::kInt32));
  tensors->push_back(torch::tensor(top, torch::kInt32));
  tensors->push_back(torch::tensor(probability, torch::kFloat32));
}

// Reads a set of sequences from the four tensors of append().
std::vector<TaughtSequence> take(std::span<const torch::Tensor> tensors) {
  const int64_t n = tensors[0].numel() / 2;
  const auto* shape = tensors[0].const_data_ptr<int64_t>();
  const auto* tokens = tensors[1].const_data_ptr<int32_t>();
  const auto* top = tensors[2].const_data_ptr<int32_t>();
  const auto* probability = tensors[3].const_data_ptr<float>();
  std::vector<TaughtSequence> set(static_cast<size_t>(n));
  for (TaughtSequence& sequence : set) {
    const int64_t length = *shape++;
    sequence.first = *shape++;
    const int64_t size = (length - sequence.first) * kTaughtTop;
    sequence.tokens.assign(tokens, tokens + length);
    sequence.top.assign(top, top + size);
    sequence.probability.assign(probability, probability + size);
    tokens += length;
    top += size;
    probability += size;
  }
  return set;
}

}  // namespace

Teacher::Teacher(const Weights& weights, std::set<TokenId> stop, int threads)
    : stop_(std::move(stop)), pool_(threads), model_(load_llama(weights, {}, pool_)) {
  context_ = policy_context(*model_, llama_cache_shape(model_->config(), {}), &pool_);
  policy_ = make_policy(context_, nullptr);
}

void Teacher::take_rows(int64_t n) {
  const int64_t vocabulary = model_->config().vocab_size;
  rows_.resize(static_cast<size_t>(n));
  pool_.parallel_for(n, [&](int64_t i) {
    thread_local LogprobRow row;
    row.assign({logits_.data() + i * vocabulary, static_cast<size_t>(vocabulary)});
    const TokenLogprob best = row.of(0, kTaughtTop);
    for (size_t k = 0; k < static_cast<size_t>(kTaughtTop); ++k) {
      rows_[static_cast<size_t>(i)].top[k] = best.top.at(k).first;
      rows_[static_cast<size_t>(i)].probability[k] = std::exp(best.top.at(k).second);
    }
  });
}

TaughtSequence Teacher::read(std::span<const TokenId> window) {
  TaughtSequence taught;
  taught.tokens.assign(window.begin(), window.end());
  const std::unique_ptr<SequenceCache> cache = policy_->new_sequence(static_cast<int64_t>(window.size()));
  logits_.resize(static_cast<size_t>(kReadChunk * model_->config().vocab_size));
  while (!window.empty()) {
    const auto chunk = window.first(std::min(window.size(), static_cast<size_t>(kReadChunk)));
    const auto n = static_cast<int64_t>(chunk.size());
    const SequenceInput input{chunk, cache.get(), n};
    model_->forward({&input, 1}, logits_.data());
    cache->commit(cache->tokens());
    take_rows(n);
    for (const Row& row : rows_) {
      taught.top.insert(taught.top.end(), row.top, row.top + kTaughtTop);
      taught.probability.insert(taught.probability.end(), row.probability, row.probability + kTaughtTop);
    }
    window = window.subspan(chunk.size());
  }
  return taught;
}

std::vector<TaughtSequence> Teacher::answer(std::span<const AnswerPrompt> prompts, int64_t max_tokens, int64_t batch,
                                            uint64_t seed, const std::function<void(int64_t done)>& progress) {
  struct Active {
    size_t prompt;
    std::unique_ptr<SequenceCache> cache;
  };
  std::vector<TaughtSequence> answers(prompts.size());
  std::vector<Active> active;
  std::vector<SequenceInput> inputs;
  logits_.resize(static_cast<size_t>(batch * model_->config().vocab_size));
  for (size_t next = 0; next < prompts.size() || !active.empty();) {
    for (; next < prompts.size() && active.size() < static_cast<size_t>(batch); ++next) {
      answers[next].tokens = prompts[next].tokens;
      answers[next].first = static_cast<int64_t>(prompts[next].tokens.size()) - 1;
      active.push_back({next, policy_->new_sequence(static_cast<int64_t>(prompts[next].tokens.size()))});
    }
    inputs.clear();
    for (const Active& a : active) {
      const std::span<const TokenId> tokens(answers[a.prompt].tokens);
      inputs.push_back({tokens.subspan(static_cast<size_t>(a.cache->tokens())), a.cache.get(), 1});
    }
    model_->forward(inputs, logits_.data());
    take_rows(static_cast<int64_t>(active.size()));
    for (size_t i = 0; i < active.size(); ++i) {
      Active& a = active[i];
      a.cache->commit(a.cache->tokens());
      TaughtSequence& answer = answers[a.prompt];
      const Row& row = rows_[i];
      const int64_t position = answer.n_taught();
      answer.top.insert(answer.top.end(), row.top, row.top + kTaughtTop);
      answer.probability.insert(answer.probability.end(), row.probability, row.probability + kTaughtTop);
      const TokenId token = draw(row.top, row.probability, prompts[a.prompt].temperature,
                                 uniform(seed, static_cast<uint32_t>(a.prompt), static_cast<uint64_t>(position)));
      if (stop_.contains(token) || position >= max_tokens) {
        a.cache = nullptr;
      } else {
        answer.tokens.push_back(token);
      }
    }
    std::erase_if(active, [](const Active& a) { return a.cache == nullptr; });
    progress(static_cast<int64_t>(next - active.size()));
  }
  return answers;
}

void save_draft_data(const std::filesystem::path& file, const DraftData& data) {
  std::vector<torch::Tensor> tensors;
  for (const auto* set : {&data.answers, &data.windows, &data.held_answers, &data.held_windows}) append(*set, &tensors);
  try {
    torch::save(tensors, file.string());
  } catch (const c10::Error& error) {
    throw ModelError(file.string() + ": " + error.what_without_backtrace());
  }
}

DraftData load_draft_data(const std::filesystem::path& file) {
  std::vector<torch::Tensor> tensors;
  try {
    torch::load(tensors, file.string());
  } catch (const c10::Error& error) {
    throw ModelError(file.string() + ": " + error.what_without_backtrace());
  }
  if (tensors.size() != 16) {
    throw ModelError(file.string() + ": expected 16 tensors of training data, found " + std::to_string(tensors.size()));
  }
  const std::span<const torch::Tensor> all(tensors);
  return {take(all.subspan(0, 4)), take(all.subspan(4, 4)), take(all.subspan(8, 4)), take(all.subspan(12, 4))};
}

}  // namespace smartkv

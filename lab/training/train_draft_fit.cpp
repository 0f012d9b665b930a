#include "lab/training/train_draft_fit.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <numeric>
#include <random>

namespace smartkv {
namespace {

constexpr int64_t kDrafted = 4;  // drafted tokens per round, for DraftQuality::tokens_per_pass

torch::Tensor read_tensor(const Weights& weights, const std::string& name) {
  const auto view = weights.find(name);
  if (!view) throw ModelError("tensor \"" + name + "\" is missing");
  const std::vector<float> values = weights.read(name, view->shape);
  return torch::tensor(values).view(view->shape);
}

struct Batch {
  torch::Tensor tokens;       // int64 [batch, length], padded at the end
  torch::Tensor rows;         // int64 [n]: the positions with known distributions
  torch::Tensor top;          // int64 [n, kTaughtTop]: rows of the draft's head; 0 for a token without a row
  torch::Tensor probability;  // f32 [n, kTaughtTop]; 0 for a token without a row
  torch::Tensor best;         // bool [n]: whether the head has a row for the most likely token
};

// Groups sequences of similar length into batches of about `batch` tokens.
class Batcher {
 public:
  Batcher(std::span<const TaughtSequence> sequences, std::span<const TokenId> output_tokens, int64_t vocab_size,
          int64_t batch)
      : sequences_(sequences), row_of_(static_cast<size_t>(vocab_size), -1), order_(sequences.size()), batch_(batch) {
    for (size_t i = 0; i < output_tokens.size(); ++i) row_of_.at(static_cast<size_t>(output_tokens[i])) = i;
    std::iota(order_.begin(), order_.end(), size_t{0});
  }

  // Returns the indices of the sequences in each batch. The spans are valid until the next call. Shuffles unless
  // `random` is null.
  std::vector<std::span<const size_t>> plan(std::mt19937_64* random) {
    constexpr size_t kLike = 32;
    if (random != nullptr) std::shuffle(order_.begin(), order_.end(), *random);
    std::stable_sort(order_.begin(), order_.end(), [&](size_t a, size_t b) {
      return sequences_[a].tokens.size() / kLike < sequences_[b].tokens.size() / kLike;
    });
    std::vector<std::span<const size_t>> batches;
    for (size_t first = 0; first < order_.size();) {
      size_t end = first, longest = 0;
      while (end < order_.size()) {
        longest = std::max(longest, sequences_[order_[end]].tokens.size());
        if (end > first && (end + 1 - first) * longest > static_cast<size_t>(batch_)) break;
        ++end;
      }
      batches.emplace_back(order_.data() + first, end - first);
      first = end;
    }
    if (random != nullptr) std::shuffle(batches.begin(), batches.end(), *random);
    return batches;
  }

  Batch make(std::span<const size_t> members) const {
    int64_t length = 0, n = 0;
    for (const size_t member : members) {
      length = std::max(length, static_cast<int64_t>(sequences_[member].tokens.size()));
      n += sequences_[member].n_taught();
    }
    Batch batch;
    batch.tokens = torch::zeros({static_cast<int64_t>(members.size()), length}, torch::kInt64);
    batch.rows = torch::empty({n}, torch::kInt64);
    batch.top = torch::zeros({n, kTaughtTop}, torch::kInt64);
    batch.probability = torch::zeros({n, kTaughtTop}, torch::kFloat32);
    auto *token = batch.tokens.data_ptr<int64_t>(), *row = batch.rows.data_ptr<int64_t>(),
         *top = batch.top.data_ptr<int64_t>();
    auto* probability = batch.probability.data_ptr<float>();
    for (size_t m = 0; m < members.size(); ++m, token += length) {
      const TaughtSequence& sequence = sequences_[members[m]];
      std::copy(sequence.tokens.begin(), sequence.tokens.end(), token);
      for (int64_t i = 0; i < sequence.n_taught(); ++i) {
        *row++ = static_cast<int64_t>(m) * length + sequence.first + i;
      }
      for (size_t i = 0; i < sequence.top.size(); ++i, ++top, ++probability) {
        const int64_t found = row_of_[static_cast<size_t>(sequence.top[i])];
        if (found < 0) continue;
        *top = found;
        *probability = sequence.probability[i];
      }
    }
    batch.best = batch.probability.select(1, 0) > 0;
    return batch;
  }

 private:
  std::span<const TaughtSequence> sequences_;
  std::vector<int64_t> row_of_;
  std::vector<size_t> order_;
  int64_t batch_;
};

// Returns the number of rounds in which greedy decoding covers the n positions of one sequence. A round yields the
// agreeing tokens, at most kDrafted, and the target's own. The result is exact if the tokens are the target's greedy
// answer.
int64_t rounds(const bool* agrees, int64_t n) {
  int64_t count = 0;
  for (int64_t at = 0; at < n; ++count) {
    int64_t accepted = 0;
    while (accepted < kDrafted && at + accepted < n && agrees[at + accepted]) ++accepted;
    at += accepted + 1;
  }
  return count;
}

}  // namespace

DraftNetwork::DraftNetwork(const Weights& target, std::span<const int64_t> layers, std::vector<TokenId> output_tokens,
                           torch::Dtype dtype)
    : config_(target.config()), output_tokens_(std::move(output_tokens)), dtype_(dtype) {
  config_.n_layers = static_cast<int64_t>(layers.size());
  for (size_t i = 0; i < layers.size(); ++i) {
    const std::string from = "model.layers." + std::to_string(layers[i]) + ".";
    for (const std::string& name : target.names()) {
      if (!name.starts_with(from)) continue;
      learned_["model.layers." + std::to_string(i) + "." + name.substr(from.size())] = read_tensor(target, name);
    }
  }
  learned_["model.norm.weight"] = read_tensor(target, "model.norm.weight");
  for (auto& [name, tensor] : learned_) tensor.set_requires_grad(true);
  embedding_ = read_tensor(target, "model.embed_tokens.weight").to(dtype);
  const torch::Tensor head = config_.tie_word_embeddings ? embedding_ : read_tensor(target, "lm_head.weight").to(dtype);
  head_ = head.index_select(0, torch::tensor(output_tokens_, torch::kInt64));
  config_.tie_word_embeddings = false;
}

torch::Tensor DraftNetwork::logits(const torch::Tensor& tokens, const torch::Tensor& rows) const {
  std::map<std::string, torch::Tensor> tensors = {{"model.embed_tokens.weight", embedding_}, {"lm_head.weight", head_}};
  for (const auto& [name, tensor] : learned_) tensors[name] = tensor.to(dtype_);
  const TorchLlama model(config_, std::move(tensors));
  const torch::Tensor x =
      model.hidden(tokens, [](int64_t, const AttentionInputs& inputs) { return causal_attention(inputs); })
          .flatten(0, 1)
          .index_select(0, rows);
  return model.head(x).to(torch::kFloat32);
}

std::vector<torch::Tensor> DraftNetwork::parameters(bool matrices) const {
  std::vector<torch::Tensor> parameters;
  for (const auto& [name, tensor] : learned_) {
    if ((tensor.dim() == 2) == matrices) parameters.push_back(tensor);
  }
  return parameters;
}

std::vector<NamedTensor> DraftNetwork::tensors() const {
  std::vector<NamedTensor> tensors;
  for (const auto& [name, tensor] : learned_) {
    const torch::Tensor values = tensor.detach().contiguous();
    const auto* data = values.const_data_ptr<float>();
    tensors.push_back({name, values.sizes().vec(), std::vector<float>(data, data + values.numel())});
  }
  return tensors;
}

void fit_draft(DraftNetwork* network, std::span<const TaughtSequence> sequences, const DraftFitOptions& options,
               const std::function<void(int64_t done, int64_t of, double loss)>& progress) {
  // Share of all steps, share of the peak rate, and decay of the running mean of the loss.
  constexpr double kWarmup = 0.04, kLeastRate = 0.05, kMemory = 0.95;
  using torch::optim::AdamWOptions;
  const auto group = [&](bool matrices) {
    auto decay = std::make_unique<AdamWOptions>(AdamWOptions().weight_decay(matrices ? 0.01 : 0.0));
    return torch::optim::OptimizerParamGroup(network->parameters(matrices), std::move(decay));
  };
  torch::optim::AdamW optimizer({group(true), group(false)}, AdamWOptions());
  std::vector<torch::Tensor> parameters = network->parameters(true);
  for (const torch::Tensor& vector : network->parameters(false)) parameters.push_back(vector);
  std::mt19937_64 random(options.seed);
  Batcher batcher(sequences, network->output_tokens(), network->vocab_size(), options.batch);
  const auto steps_of_epoch = static_cast<int64_t>(batcher.plan(&random).size());
  const int64_t steps = steps_of_epoch * options.epochs;
  const double warmup = std::max(1.0, kWarmup * static_cast<double>(steps));
  double mean_loss = 0, weight = 0;
  int64_t step = 0;
  while (step < steps) {
    for (const std::span<const size_t> members : batcher.plan(&random)) {
      if (step == steps) break;
      const double done = (static_cast<double>(step) - warmup) / std::max(1.0, static_cast<double>(steps) - warmup);
      const double share = done < 0 ? static_cast<double>(step + 1) / (warmup + 1)
                                    : kLeastRate + (1 - kLeastRate) * 0.5 * (1 + std::cos(std::numbers::pi * done));
      for (auto& parameter_group : optimizer.param_groups()) {
        static_cast<AdamWOptions&>(parameter_group.options()).lr(options.learning_rate * share);
      }
      const Batch batch = batcher.make(members);
      const torch::Tensor q = torch::log_softmax(network->logits(batch.tokens, batch.rows), -1).gather(1, batch.top);
      const torch::Tensor p = batch.probability;
      const torch::Tensor loss = (p * (p.clamp_min(1e-9).log() - q)).sum() / p.sum();
      optimizer.zero_grad();
      loss.backward();
      torch::nn::utils::clip_grad_norm_(parameters, 1.0);
      optimizer.step();
      mean_loss = kMemory * mean_loss + (1 - kMemory) * loss.item<double>();
      weight = kMemory * weight + (1 - kMemory);
      progress(++step, steps, mean_loss / weight);
    }
  }
}

DraftQuality measure_draft(const DraftNetwork& network, std::span<const TaughtSequence> sequences, int64_t tokens) {
  const torch::NoGradGuard no_grad;
  Batcher batcher(sequences, network.output_tokens(), network.vocab_size(), tokens);
  DraftQuality quality;
  int64_t agreements = 0, n_rounds = 0;
  for (const std::span<const size_t> members : batcher.plan(nullptr)) {
    const Batch batch = batcher.make(members);
    const torch::Tensor logits = network.logits(batch.tokens, batch.rows);
    const torch::Tensor q = torch::softmax(logits, -1).gather(1, batch.top);
    const torch::Tensor agrees = ((logits.argmax(-1) == batch.top.select(1, 0)) & batch.best).contiguous();
    quality.overlap += torch::minimum(q, batch.probability).sum().item<double>();
    quality.coverage += batch.probability.sum().item<double>();
    quality.positions += agrees.numel();
    agreements += agrees.sum().item<int64_t>();
    const bool* at = agrees.const_data_ptr<bool>();
    for (const size_t member : members) {
      const int64_t n = sequences[member].n_taught();
      n_rounds += rounds(at, n);
      at += n;
    }
  }
  const auto positions = static_cast<double>(std::max<int64_t>(1, quality.positions));
  quality.agreement = static_cast<double>(agreements) / positions;
  quality.tokens_per_pass = positions / static_cast<double>(std::max<int64_t>(1, n_rounds));
  quality.overlap /= positions;
  quality.coverage /= positions;
  return quality;
}

std::vector<TokenId> frequent_tokens(std::span<const TaughtSequence> answers, std::span<const TaughtSequence> windows,
                                     int64_t vocab_size, int64_t count) {
  std::vector<double> weight(static_cast<size_t>(vocab_size));
  for (const auto set : {answers, windows}) {
    for (const TaughtSequence& sequence : set) {
      for (size_t i = 0; i < sequence.top.size(); ++i) {
        weight[static_cast<size_t>(sequence.top[i])] += static_cast<double>(sequence.probability[i]);
      }
    }
  }
  std::vector<TokenId> tokens(static_cast<size_t>(vocab_size));
  std::iota(tokens.begin(), tokens.end(), 0);
  std::stable_sort(tokens.begin(), tokens.end(), [&](TokenId a, TokenId b) {
    return weight[static_cast<size_t>(a)] > weight[static_cast<size_t>(b)];
  });
  tokens.resize(static_cast<size_t>(std::min(count, vocab_size)));
  std::sort(tokens.begin(), tokens.end());
  return tokens;
}

}  // namespace smartkv

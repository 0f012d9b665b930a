#include "engine/sampling/sampler.h"

#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "kernels/token_weight.h"

namespace smartkv {
namespace {

// Classes of weights in (0, 1], in ascending order: the exponent and three bits of the mantissa.
constexpr uint32_t kClassShift = 20;
constexpr size_t kWeightClasses = (std::bit_cast<uint32_t>(1.0f) >> kClassShift) + 1;
size_t weight_class(float weight) { return std::bit_cast<uint32_t>(weight) >> kClassShift; }

static_assert(TokenNoise::kBlockTokens == kScanBlock);

// Tokens whose logits differ by less than this many temperatures may have the same weight, because the exponent (up to
// 88) and the exponential are rounded.
constexpr float kTieMargin = 3e-5f;

constexpr double kNever = std::numeric_limits<double>::infinity();

// The leader of the race (token_noise.h). The lower id wins a tie.
struct Winner {
  double time = kNever;
  TokenId token = std::numeric_limits<TokenId>::max();

  void meet(TokenId other, float weight, const TokenNoise::Block& block, const TokenNoise& noise) {
    if (weight <= 0 || !may_be_first(block.least, weight, time)) return;
    const double arrival = noise.of(other, block) / weight;
    if (arrival > time || (arrival == time && other > token)) return;
    time = arrival;
    token = other;
  }
};

// Returns the offset of the least logit that min_p keeps from the largest logit.
float min_p_offset(const SamplingParams& params) {
  if (params.min_p <= 0) return -std::numeric_limits<float>::infinity();
  return params.temperature * std::log(params.min_p);
}

bool is_greedy(const SamplingParams& params) { return params.temperature < kGreedyTemperature; }

// Masks the tokens whose bit is 0. `bits` has the layout of Constraint::allowed(); most words are all 0 or all 1.
void keep_allowed(std::span<const uint32_t> bits, std::span<float> logits) {
  for (size_t start = 0; start < logits.size(); start += 32) {
    const uint32_t word = bits[start / 32];
    if (word == ~uint32_t{0}) continue;
    const size_t end = std::min(start + 32, logits.size());
    for (size_t i = start; i < end; ++i) {
      if ((word >> (i - start) & 1) == 0) logits[i] = -std::numeric_limits<float>::infinity();
    }
  }
}

}  // namespace

bool needs_history(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f || params.frequency_penalty != 0.0f;
}

double Distribution::probability(TokenId token) const {
  auto index = static_cast<size_t>(token);
  if (!tokens_.empty()) {
    const auto at = std::lower_bound(tokens_.begin(), tokens_.end(), token);
    if (at == tokens_.end() || *at != token) return 0;
    index = static_cast<size_t>(at - tokens_.begin());
  }
  return index < weights_.size() ? weights_[index] / total_ : 0;
}

TokenId Distribution::draw(const TokenNoise& noise) const {
  Winner winner;
  TokenNoise::Block block{};
  int64_t index = -1;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const TokenId token = tokens_.empty() ? static_cast<TokenId>(i) : tokens_[i];
    if (const int64_t own = token / TokenNoise::kBlockTokens; own != index) block = noise.block(index = own);
    winner.meet(token, weights_[i], block, noise);
  }
  return winner.token;
}

std::span<const float> Sampler::edited(std::span<const float> logits, const SamplingInput& input) {
  const SamplingParams& params = input.params;
  if (params.logit_bias.empty() && !needs_history(params) && input.forbidden.empty() && input.allowed.empty()) {
    return logits;
  }
  edited_.assign(logits.begin(), logits.end());
  for (const auto& [token, bias] : params.logit_bias) edited_[static_cast<size_t>(token)] += bias;
  if (needs_history(params)) {
    for (const auto& [token, count] : input.history.seen()) {
      float& logit = edited_[static_cast<size_t>(token)];
      logit = penalised(logit, count, params.repetition_penalty, params.frequency_penalty, params.presence_penalty);
    }
  }
  for (const TokenId token : input.forbidden) {
    edited_[static_cast<size_t>(token)] = -std::numeric_limits<float>::infinity();
  }
  if (!input.allowed.empty()) keep_allowed(input.allowed, edited_);
  return edited_;
}

kernels::DeviceSample device_sample(const SamplingInput& input, const TokenNoise& noise, int64_t vocabulary) {
  const SamplingParams& params = input.params;
  kernels::DeviceSample draw;
  draw.vocabulary = vocabulary;
  draw.logit_bias = params.logit_bias;
  if (needs_history(params)) draw.seen = input.history.seen();
  draw.repetition_penalty = params.repetition_penalty;
  draw.frequency_penalty = params.frequency_penalty;
  draw.presence_penalty = params.presence_penalty;
  draw.forbidden = input.forbidden;
  draw.allowed = input.allowed;
  draw.greedy = is_greedy(params);
  if (!draw.greedy) draw.scale = 1.0f / params.temperature;
  draw.min_p_offset = min_p_offset(params);
  draw.top_k = params.top_k;
  draw.top_p = params.top_p;
  draw.noise = noise;
  return draw;
}

TokenId drawn_token(const kernels::DeviceSample& draw) {
  switch (draw.drawn.error) {
    case kernels::DrawError::kNone: break;
    case kernels::DrawError::kAllMasked: throw_all_masked();
    case kernels::DrawError::kNan:
    case kernels::DrawError::kInfinity: throw_bad_logit(draw.drawn.token, draw.drawn.error == kernels::DrawError::kNan);
  }
  return draw.drawn.token;
}

const Distribution& Sampler::distribution(std::span<const float> raw_logits, const SamplingInput& input) {
  const SamplingParams& params = input.params;
  const std::span<const float> logits = edited(raw_logits, input);
  const float max = scan_row(logits, &block_max_);
  if (is_greedy(params)) {
    greedy(logits, max);
    return result_;
  }
  // min_p and top_k keep the tokens of the largest logits, so both are first cut by a bound on the logit.
  const float of_top_k = top_k_floor(block_max_, params.top_k, &scratch_) - kTieMargin * params.temperature;
  const float floor = std::max(of_top_k, max + min_p_offset(params));
  result_.tokens_.clear();
  std::span<const float> kept = logits;
  if (floor > -std::numeric_limits<float>::infinity()) {
    gather(logits, floor);
    kept = scratch_;
  }
  result_.weights_.resize(kept.size());
  exp_row(kept, max, 1.0f / params.temperature, result_.weights_.data());
  if (params.top_k > 0) keep_top_k(params.top_k);
  if (params.top_p < 1.0f) keep_top_p(params.top_p);
  result_.total_ = row_sum(result_.weights_);
  return result_;
}

TokenId Sampler::sample(std::span<const float> raw_logits, const SamplingInput& input, const TokenNoise& noise) {
  const SamplingParams& params = input.params;
  if (is_greedy(params) || params.top_k > 0 || params.top_p < 1.0f) {
    return distribution(raw_logits, input).draw(noise);
  }
  const std::span<const float> logits = edited(raw_logits, input);
  return race(logits, scan_row(logits, &block_max_), params, noise);
}

// Returns the winner of the race over the whole row. No token of a block arrives before the block's least noise divided
// by the weight of its largest logit, so only blocks with an earlier bound than the winner so far are examined.
TokenId Sampler::race(std::span<const float> logits, float max, const SamplingParams& params, const TokenNoise& noise) {
  const float floor = max + min_p_offset(params), scale = 1.0f / params.temperature;
  const size_t n_blocks = block_max_.size();
  scratch_.resize(n_blocks);
  earliest_.resize(n_blocks);
  exp_row(block_max_, max, scale, scratch_.data());
  for (size_t i = 0; i < n_blocks; ++i) {
    const bool runs = scratch_[i] > 0 && block_max_[i] >= floor;
    earliest_[i] = runs ? noise.block(static_cast<int64_t>(i)).least / (scratch_[i] * kWeightBound) : kNever;
  }
  Winner winner;
  const auto run = [&](size_t index) {
    const size_t first = index * kScanBlock;
    const auto members = logits.subspan(first, std::min<size_t>(kScanBlock, logits.size() - first));
    const TokenNoise::Block block = noise.block(static_cast<int64_t>(index));
    float weights[kScanBlock];
    exp_row(members, max, scale, weights);
    for (size_t i = 0; i < members.size(); ++i) {
      if (members[i] >= floor) winner.meet(static_cast<TokenId>(first + i), weights[i], block, noise);
    }
  };
  const auto likely = static_cast<size_t>(std::min_element(earliest_.begin(), earliest_.end()) - earliest_.begin());
  run(likely);
  for (size_t i = 0; i < n_blocks; ++i) {
    if (i != likely && earliest_[i] <= winner.time) run(i);
  }
  return winner.token;
}

void Sampler::greedy(std::span<const float> logits, float max) {
  const auto block = static_cast<size_t>(std::find(block_max_.begin(), block_max_.end(), max) - block_max_.begin());
  const auto at = std::find(logits.begin() + static_cast<int64_t>(block) * kScanBlock, logits.end(), max);
  result_.tokens_.assign(1, static_cast<TokenId>(at - logits.begin()));
  result_.weights_.assign(1, 1.0f);
  result_.total_ = 1;
}

void Sampler::gather(std::span<const float> logits, float floor) {
  scratch_.clear();
  for (size_t block = 0; block < block_max_.size(); ++block) {
    if (block_max_[block] < floor) continue;
    const size_t end = std::min((block + 1) * kScanBlock, logits.size());
    for (size_t i = block * kScanBlock; i < end; ++i) {
      if (logits[i] < floor) continue;
      result_.tokens_.push_back(static_cast<TokenId>(i));
      scratch_.push_back(logits[i]);
    }
  }
}

void Sampler::keep_top_k(int64_t k) {
  if (k >= static_cast<int64_t>(result_.weights_.size())) return;
  entries_.clear();
  for (size_t i = 0; i < result_.weights_.size(); ++i) entries_.push_back({result_.weights_[i], token_at(i)});
  std::nth_element(entries_.begin(), entries_.begin() + (k - 1), entries_.end(), before);
  keep_from(entries_[static_cast<size_t>(k - 1)]);
}

void Sampler::keep_top_p(float top_p) {
  // Add up the mass by class of weight, from the largest down. Only the class in which it reaches top_p needs an order.
  class_mass_.assign(kWeightClasses, 0);
  for (const float weight : result_.weights_) class_mass_[weight_class(weight)] += weight_mass(weight);
  int64_t needed = top_p_mass(std::accumulate(class_mass_.begin(), class_mass_.end(), int64_t{0}), top_p);
  size_t edge = kWeightClasses - 1;
  while (class_mass_[edge] < needed) needed -= class_mass_[edge--];
  entries_.clear();
  for (size_t i = 0; i < result_.weights_.size(); ++i) {
    if (weight_class(result_.weights_[i]) == edge) entries_.push_back({result_.weights_[i], token_at(i)});
  }
  // Bisect for the entry at which the mass reaches top_p. It is in [first, last); entries before `first` are kept.
  auto first = entries_.begin();
  auto last = entries_.end();
  while (last - first > 1) {
    const auto middle = first + (last - first) / 2;
    std::nth_element(first, middle, last, before);
    int64_t mass = 0;
    for (auto entry = first; entry != middle; ++entry) mass += weight_mass(entry->weight);
    if (mass >= needed) {
      last = middle;
    } else {
      needed -= mass;
      first = middle;
    }
  }
  keep_from(*first);
}

void Sampler::keep_from(const Entry& last) {
  const bool whole_row = result_.tokens_.empty();
  size_t kept = 0;
  for (size_t i = 0; i < result_.weights_.size(); ++i) {
    const Entry entry{result_.weights_[i], whole_row ? static_cast<TokenId>(i) : result_.tokens_[i]};
    if (before(last, entry)) continue;
    if (whole_row) {
      result_.tokens_.push_back(entry.token);
    } else {
      result_.tokens_[kept] = entry.token;
    }
    result_.weights_[kept++] = entry.weight;
  }
  result_.tokens_.resize(kept);
  result_.weights_.resize(kept);
}

}  // namespace smartkv

// A model and a tokenizer for engine tests. Logits are a hash of the whole sequence, which is read from the real cache.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "cache/policy.h"
#include "cache/sequence_cache.h"
#include "engine/model/model.h"
#include "engine/text/tokenizer.h"
#include "kernels/random.h"

namespace smartkv {

constexpr TokenId kFakeEos = 0;
constexpr TokenId kFakeNan = 62;    // a sequence that contains it gets NaN logits
constexpr TokenId kFakeThrow = 63;  // a pass that carries it throws
constexpr int64_t kFakeVocab = 64;

inline CacheShape fake_cache_shape() { return {1, 1, 16, kernels::KvType::kF32}; }

class FakeModel final : public Model {
 public:
  FakeModel() {
    config_.name = "fake";
    config_.vocab_size = kFakeVocab;
    config_.context_length = 1024;
    config_.n_layers = fake_cache_shape().n_layers;
  }

  const ModelConfig& config() const override { return config_; }
  int64_t weight_bytes() const override { return 0; }
  const std::shared_ptr<kernels::KvBackend>& kv_backend() const override { return kv_backend_; }
  void rope_angles(int64_t, float* cos, float* sin) const override {
    std::fill_n(cos, kDim / 2, 1.0f);
    std::fill_n(sin, kDim / 2, 0.0f);
  }

  void forward(std::span<const SequenceInput> batch, float* logits) override {
    if (on_forward) on_forward(batch);
    for (const SequenceInput& input : batch) {
      const auto n = static_cast<int64_t>(input.tokens.size());
      if (input.cache->tokens() + n > input.cache->next_boundary()) throw std::logic_error("beyond the boundary");
      // The key of a token is its id, so that a fork or a later pass sees exactly the tokens that the cache holds.
      std::vector<float> rows(static_cast<size_t>(n * kDim), 0.0f);
      for (int64_t i = 0; i < n; ++i) {
        const TokenId token = input.tokens[static_cast<size_t>(i)];
        if (token == kFakeThrow) throw std::runtime_error("the fake model cannot bear token 63");
        rows[static_cast<size_t>(i * kDim)] = static_cast<float>(token);
      }
      input.cache->reserve(n);
      input.cache->write(0, {rows.data(), rows.data(), kDim, 0, n});
      std::vector<kernels::KvSegment> segments;
      input.cache->view(0, n, &segments);
      input.cache->advance(n);
      seen_.clear();
      for (const kernels::KvSegment& segment : segments) {
        const auto* keys = static_cast<const float*>(segment.k);  // K is [dim][token]
        for (int32_t t = 0; t < segment.tokens; ++t) seen_.push_back(static_cast<TokenId>(keys[t]));
      }
      if (input.draw != nullptr) {
        draw(input.draw);
        continue;
      }
      for (int64_t row = 0; row < input.n_logits; ++row, logits += kFakeVocab) {
        const auto visible = static_cast<int64_t>(seen_.size()) - input.n_logits + row + 1;
        const auto first = std::max<int64_t>(0, visible - memory);
        fill_logits({seen_.data() + first, static_cast<size_t>(visible - first)}, logits);
      }
    }
  }

  // Computes the logits that follow these tokens: [kFakeVocab].
  void fill_logits(std::span<const TokenId> tokens, float* logits) const {
    uint64_t hash = 1;
    bool broken = false;
    for (const TokenId token : tokens) {
      hash = detail::mix64(hash ^ static_cast<uint64_t>(token));
      broken = broken || token == kFakeNan;
    }
    for (int64_t i = 0; i < kFakeVocab; ++i) logits[i] = broken ? kNan : logit(hash, i);
  }

  bool samples_tokens() const override { return draws; }
  std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) const override {
    std::unique_ptr<KvCachePolicy> policy = smartkv::make_policy(context, spec);
    return checked_policy ? checked_policy(std::move(policy)) : std::move(policy);
  }

  // Called in every step of the engine, outside the work of any sequence.
  std::string lost() const override {
    if (failures.load() > 0 && failures.fetch_sub(1) > 0) throw std::bad_alloc();
    return {};
  }

  mutable std::atomic<int> failures{0};                            // how often lost() will throw
  std::function<void(std::span<const SequenceInput>)> on_forward;  // called before the pass; may wait or throw
  std::function<float(TokenId)> bias = [](TokenId token) {         // keeps special tokens out unless a test replaces it
    return token == kFakeEos || token >= kFakeNan ? -50.0f : 0.0f;
  };
  // Wraps each policy that the model makes. May be null.
  std::function<std::unique_ptr<KvCachePolicy>(std::unique_ptr<KvCachePolicy>)> checked_policy;
  bool draws = false;          // samples the most probable token that the mask allows, instead of returning logits
  int64_t memory = INT64_MAX;  // number of last tokens on which the logits depend

 private:
  static constexpr int64_t kDim = 16;
  static constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

  void draw(kernels::DeviceSample* draw) const {
    std::vector<float> logits(kFakeVocab);
    fill_logits(seen_, logits.data());
    TokenId best = -1;
    for (TokenId token = 0; token < kFakeVocab; ++token) {
      const bool allowed =
          draw->allowed.empty() || (draw->allowed[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
      if (allowed && (best < 0 || logits[static_cast<size_t>(token)] > logits[static_cast<size_t>(best)])) best = token;
    }
    draw->drawn.token = best;
  }

  float logit(uint64_t hash, int64_t token) const {
    const uint64_t bits = detail::mix64(hash + static_cast<uint64_t>(token));
    return static_cast<float>(bits >> 40) * 0x1.0p-24f * 8 + bias(static_cast<TokenId>(token));
  }

  ModelConfig config_;
  std::shared_ptr<kernels::KvBackend> kv_backend_ = kernels::make_cpu_kv_backend(nullptr);
  std::vector<TokenId> seen_;
};

// Tokens 1 to 26 are "a" to "z", 27 is " ", 28 and 29 are the two bytes of "é", and any other is "<id>".
class FakeTokenizer final : public Tokenizer {
 public:
  std::vector<TokenId> encode(std::string_view text, const EncodeOptions&) const override {
    std::vector<TokenId> tokens;
    for (const char c : text) tokens.push_back(c == ' ' ? 27 : c - 'a' + 1);
    return tokens;
  }
  std::string decode(std::span<const TokenId> tokens, bool skip_special) const override {
    std::string text;
    for (const TokenId token : tokens) {
      if (!skip_special || !is_special(token)) text += token_bytes(token);
    }
    return text;
  }
  std::string token_bytes(TokenId token) const override {
    if (token < 0 || token >= kFakeVocab) throw std::out_of_range("token " + std::to_string(token));
    if (token >= 1 && token <= 26) return std::string(1, static_cast<char>('a' + token - 1));
    if (token == 27) return " ";
    if (token == 28) return "\xC3";
    if (token == 29) return "\xA9";
    return "<" + std::to_string(token) + ">";
  }
  int64_t vocab_size() const override { return kFakeVocab; }
  std::optional<TokenId> token_id(std::string_view) const override { return std::nullopt; }
  std::string token_content(TokenId token) const override { return token_bytes(token); }
  bool is_special(TokenId token) const override { return token == kFakeEos; }
  std::optional<TokenId> bos() const override { return std::nullopt; }
  std::optional<TokenId> eos() const override { return kFakeEos; }
};

}  // namespace smartkv

// fields() returns all fields of a structure as a tuple of references, for the structures that determine what a model
// computes. If a structure gets another field, this file does not compile. So code that visits all fields
// (fingerprints, tests) cannot miss one.
#pragma once

#include <concepts>
#include <tuple>
#include <type_traits>

#include "engine/weights/model_config.h"
#include "engine/weights/packed_integers.h"
#include "engine/weights/tensor_view.h"

namespace smartkv {

template <typename T, typename Structure>
concept MaybeConst = std::same_as<std::remove_const_t<T>, Structure>;

// The body of fields(). Binds the names to all fields of `from`, and returns all names.
#define SMARTKV_FIELDS(from, ...) \
  {                               \
    auto& [__VA_ARGS__] = from;   \
    return std::tie(__VA_ARGS__); \
  }

template <MaybeConst<RopeConfig> T>
auto fields(T& rope) SMARTKV_FIELDS(rope, theta, rotary_dim, scaling, factor, original_context, low_freq_factor,
                                    high_freq_factor, beta_fast, beta_slow, truncate, magnitude, freq_factors,
                                    short_factors, long_factors)

    template <MaybeConst<ModelConfig> T>
    auto fields(T& config) SMARTKV_FIELDS(config, name, architecture, hidden_size, intermediate_size, n_layers, n_heads,
                                          n_kv_heads, head_dim, vocab_size, context_length, sliding_window,
                                          window_layers, rms_norm_eps, rope, window_rope_theta, rope_layers, qk_norm,
                                          qk_norm_eps, norm_placement, activation, embedding_multiplier,
                                          attention_multiplier, residual_multiplier, logits_divisor, attention_soft_cap,
                                          logit_soft_cap, attention_sinks, tie_word_embeddings, attention_bias,
                                          mlp_bias, n_experts, experts_per_token, expert_size, shared_expert_size,
                                          router_bias, normalized_experts, expert_layers, eos_token_ids)

        template <MaybeConst<WeightScales> T>
        auto fields(T& scales) SMARTKV_FIELDS(scales, values, block_rows, block_columns, columns)

            template <MaybeConst<PackedIntegers> T>
            auto fields(T& integers) SMARTKV_FIELDS(integers, layout, bits, inputs, outputs, q, zeros, scales, group_of,
                                                    order, in_groups, in_pairs, symmetric, first_row, row_step)

                template <MaybeConst<TensorView> T>
                auto fields(T& tensor)
                    SMARTKV_FIELDS(tensor, name, type, shape, data, scales, integers, first_row, row_step, column_step)

#undef SMARTKV_FIELDS

}  // namespace smartkv

// Measures how much the error of each channel of the KV cache matters to a model, from forward passes over a text.
#pragma once

#include <functional>
#include <span>

#include "cache/policies/calibrated/sensitivity.h"
#include "engine/model/model.h"
#include "engine/weights/weights.h"

namespace smartkv {

class ThreadPool;

// For layer l, KV head h, its query heads a, R_t the rotation at t, W_O,a the columns of the output projection that
// read head a; i over a sample of the queries, j over the tokens that a query finds in pages by the time, so neither in
// the first page nor in the last two:
//   A_aij  = p_aij |v_j - o_ai| / sqrt(D)          how far an error of the score of j moves the output of a
//   H_K[d] = mean_i sum_a (sum_j A_aij^2) q_ai[d]^2 (mean_a |W_O,a|^2 / D) / r_l
//   H_V[d] = mean_i sum_ab (sum_j p_aij p_bij) (W_O,a^T W_O,b)[d,d] / r_l
//   r_l    = median over tokens of |x|^2, the residual stream after the attention of layer l
//   lambda_K[d] = H_K[d] E((k - R_t mu_K)[d]^2),  lambda_V[d] = H_V[d] E((v - mu_V)[d]^2)
//
// lambda is the size of an error where it enters the residual stream. Later layers amplify errors of some heads a
// thousand times more than those of others. by_answers measures this for each side (K or V) of each KV head. G: the
// answers' KL divergence from those of the exact cache, with about 2 bits for this side and all else exact. The answers
// are at four places in the second half of the text. D = sum lambda E(b): the error that lambda predicts. lambda is
// then multiplied by sqrt(G / D); the root, because G comes from few tokens.
//
// shape: that of the model's caches. by_answers: takes about 2 n_layers n_kv_heads passes of 128 tokens. The model
// should have f32 products, because G is often smaller than the noise of others. progress: called with the finished
// share; may be null. Throws ModelError.
Sensitivity measure_sensitivity(Model& model, const Weights& weights, const CacheShape& shape, ThreadPool& threads,
                                std::span<const TokenId> text, bool by_answers,
                                const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv

// Measures what policies cost on a model: the points of its frontier (cache/frontier.h).
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "cache/frontier.h"
#include "cache/policies/calibrated/sensitivity.h"
#include "engine/model/model.h"

namespace smartkv {

class ThreadPool;

// Runs the model over a text under the full cache and under each of about a dozen policies, all in the same passes, and
// compares answers from the fifth page on: the last 16 of each page. The text consists of `kinds` kinds of text,
// in equal parts: part i is of kind i % kinds, and there are two parts of each.
//
// A point has the largest of the kinds' mean divergences and drifts, and the perplexity's mean rise plus its standard
// error, because a rise is much noisier than a divergence. The rise is at least what that divergence would be on text
// of the model's own, because on a short text luck may hide it. bytes_per_token is that at the end of the text.
//
// sensitivity: what the policy `calibrated` uses. progress: called with the finished share; may be null. Policies that
// the model cannot use are left out. Throws ModelError.
Frontier measure_frontier(Model& model, const CacheShape& shape, ThreadPool& threads, std::span<const TokenId> text,
                          int64_t kinds, const std::shared_ptr<const Sensitivity>& sensitivity,
                          const std::function<void(double)>& progress = nullptr);

}  // namespace smartkv

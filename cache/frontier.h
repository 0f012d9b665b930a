// What policies cost on one model, as engine/calibration/measure_frontier.h measures it, and promises. A promise such
// as
// {"max_kl": 0.002} stands in place of a policy: the cheapest one that keeps it is used.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace smartkv {

// A policy, what its cache costs and what it does to the model's answers. Divergences and drifts are those on the kind
// of text where they are largest.
struct FrontierPoint {
  nlohmann::json spec;            // {"policy": ..., parameters...}
  double bytes_per_token = 0;     // of all layers, every byte counted
  double kl = 0;                  // mean KL divergence of the answers from those of the full cache, nats per token
  double perplexity_percent = 0;  // rise of the perplexity, at least 0
  double drift = 0;               // mean relative L2 error of attention (drift_l2_mean of cache/shadow/)
};

// The policies that no cheaper one beats: bytes_per_token rises, and kl falls, from point to point. The last one is the
// full cache.
using Frontier = std::vector<FrontierPoint>;

// Returns the frontier of what was measured.
Frontier make_frontier(std::vector<FrontierPoint> measured);
nlohmann::json frontier_json(const Frontier& frontier);
// Reads frontier_json(). Throws nlohmann::json::exception, or CacheError if the values cannot be those of a frontier.
Frontier read_frontier(const nlohmann::json& json);

// What a client asks for in place of a policy. At least one limit is set.
struct Promise {
  std::optional<double> max_kl = {}, max_perplexity_percent = {}, bytes_per_token = {};

  // Whether `spec` names no policy but a limit.
  static bool is_in(const nlohmann::json& spec);
  // Removes the limits from a kv_cache object and returns them. Throws ParameterError.
  static Promise take(nlohmann::json* spec);
};

// Returns the index of the point that a promise chooses: the cheapest one that keeps max_kl and max_perplexity_percent.
// With bytes_per_token alone, the one with the smallest divergence that costs no more. Throws CacheError if no point
// keeps all limits; the message names the nearest one.
size_t choose_point(const Frontier& frontier, const Promise& promise);

// The point that a policy is, and the divergence that a sequence must not exceed: max_kl if a client set it, else that
// of the point.
struct KeptPromise {
  FrontierPoint point;
  double max_kl = 0;

  // Returns the drift of attention at which the divergence is about max_kl: it grows with the square of the drift.
  double most_drift() const;
};

}  // namespace smartkv

#include "cache/frontier.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "cache/parameters.h"

namespace smartkv {
namespace {

using nlohmann::json;

struct Limit {
  const char* key;
  double most;  // that a client may set
  std::optional<double> Promise::*member;
  double FrontierPoint::*value;
};
constexpr std::array kLimits = {
    Limit{"max_kl", 100, &Promise::max_kl, &FrontierPoint::kl},
    Limit{"max_perplexity_percent", 1e6, &Promise::max_perplexity_percent, &FrontierPoint::perplexity_percent},
    Limit{"bytes_per_token", 1e12, &Promise::bytes_per_token, &FrontierPoint::bytes_per_token}};

bool keeps(const FrontierPoint& point, const Promise& promise) {
  return std::ranges::all_of(kLimits, [&](const Limit& limit) {
    const std::optional<double>& most = promise.*limit.member;
    return !most || point.*limit.value <= *most;
  });
}

std::string number(double value) {
  std::ostringstream out;
  out.precision(4);
  out << value;
  return out.str();
}

std::string described(const FrontierPoint& point) {
  return point.spec.dump() + " (" + number(point.bytes_per_token) + " bytes per token, KL " + number(point.kl) +
         ", perplexity +" + number(point.perplexity_percent) + " %)";
}

}  // namespace

Frontier make_frontier(std::vector<FrontierPoint> measured) {
  std::ranges::stable_sort(measured, {}, &FrontierPoint::bytes_per_token);
  Frontier frontier;
  for (FrontierPoint& point : measured) {
    if (frontier.empty() || point.kl < frontier.back().kl) frontier.push_back(std::move(point));
  }
  return frontier;
}

json frontier_json(const Frontier& frontier) {
  json all = json::array();
  for (const FrontierPoint& point : frontier) {
    all.push_back({{"kv_cache", point.spec},
                   {"bytes_per_token", point.bytes_per_token},
                   {"kl", point.kl},
                   {"perplexity_percent", point.perplexity_percent},
                   {"drift", point.drift}});
  }
  return all;
}

Frontier read_frontier(const json& points) {
  Frontier frontier;
  for (const json& point : points) {
    frontier.push_back({point.at("kv_cache"), point.at("bytes_per_token"), point.at("kl"),
                        point.at("perplexity_percent"), point.at("drift")});
    const FrontierPoint& read = frontier.back();
    const bool first = frontier.size() == 1;
    if (!(read.bytes_per_token > (first ? 0 : frontier[frontier.size() - 2].bytes_per_token)) ||
        !(read.kl < (first ? std::numeric_limits<double>::infinity() : frontier[frontier.size() - 2].kl)) ||
        !(read.kl >= 0 && read.perplexity_percent >= 0 && read.drift >= 0)) {
      throw CacheError("frontier: expected more bytes and a smaller KL divergence than the point before, found " +
                       point.dump());
    }
  }
  return frontier;
}

bool Promise::is_in(const json& spec) {
  return spec.is_object() && !spec.contains("policy") && std::ranges::any_of(kLimits, [&](const Limit& limit) {
           const auto found = spec.find(limit.key);
           return found != spec.end() && !found->is_null();
         });
}

Promise Promise::take(json* spec) {
  Promise promise;
  Parameters parameters("kv_cache", *spec, "kv_cache", "promise");
  for (const Limit& limit : kLimits) {
    if (parameters.has(limit.key)) promise.*limit.member = parameters.number(limit.key, 0, 0, limit.most);
  }
  for (const Limit& limit : kLimits) spec->erase(limit.key);
  return promise;
}

size_t choose_point(const Frontier& frontier, const Promise& promise) {
  const bool of_quality = promise.max_kl || promise.max_perplexity_percent;
  std::optional<size_t> chosen;
  for (size_t i = 0; i < frontier.size(); ++i) {
    if (!keeps(frontier[i], promise)) continue;
    chosen = i;
    if (of_quality) break;
  }
  if (chosen) return *chosen;
  Promise quality = promise;
  quality.bytes_per_token.reset();
  const FrontierPoint& nearest = of_quality ? frontier[choose_point(frontier, quality)] : frontier.front();
  throw CacheError("kv_cache.bytes_per_token: expected at least " + number(nearest.bytes_per_token) + " for " +
                   (of_quality ? "the quality asked for" : "any policy that keeps every token") + ": " +
                   described(nearest) + ", found " + number(*promise.bytes_per_token));
}

double KeptPromise::most_drift() const {
  return point.kl > 0 ? point.drift * std::sqrt(max_kl / point.kl) : std::numeric_limits<double>::infinity();
}

}  // namespace smartkv

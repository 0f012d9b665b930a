// Queries that stand for future queries. ProbeQueries makes them.
#pragma once

#include <cstdint>
#include <vector>

namespace smartkv {

// Queries of one KV head.
struct SampledQueries {
  int64_t n = 0;
  std::vector<float> q;         // f32 [n, head_dim], multiplied by attention's scale
  std::vector<float> log_norm;  // f32 [n]: log of the sum of exp(score) over all tokens that the query sees
};

}  // namespace smartkv

#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/parameters.h"
#include "cache/policy.h"

namespace smartkv {

// Returns the parameters that `create` reads, each once, in the order in which it reads them. Their paths begin behind
// "kv_cache.". Defaults and ranges that depend on the model are those of 32 layers and 8 KV heads of 128 channels.
template <typename Create>
std::vector<ListedParameter> listed_parameters(const Create& create) {
  const CacheShape shape{32, 8, 128, kernels::KvType::kBf16};
  const PolicyContext context{shape, PagePool::create(shape)};
  std::vector<ListedParameter> all, distinct;
  parameter_list = &all;
  // Two parameters decide which others there are. A policy that does not know them throws after it has read its own.
  for (const char* parameters : {"{}", R"({"storage": "quantized"})", R"({"lost": "summaries"})"}) {
    try {
      create(context, nlohmann::json::parse(parameters));
    } catch (const CacheError&) {
    }
  }
  parameter_list = nullptr;
  for (ListedParameter& parameter : all) {
    parameter.path.erase(0, std::string("kv_cache.").size());
    const auto same = [&](const ListedParameter& other) { return other.path == parameter.path; };
    if (std::none_of(distinct.begin(), distinct.end(), same)) distinct.push_back(parameter);
  }
  return distinct;
}

// Returns every parameter of a policy, except those that all policies have.
inline std::vector<ListedParameter> policy_parameters(const PolicyRow& row) { return listed_parameters(row.create); }

// Returns the parameters that all policies have.
inline std::vector<ListedParameter> shared_parameters() {
  return listed_parameters([](const PolicyContext& context, const nlohmann::json& /*parameters*/) {
    make_policy(context, "full");  // has none of its own
  });
}

}  // namespace smartkv

#include <string>

#include "cache/policies/full/full.h"
#include "cache/policy.h"

namespace smartkv {

const std::vector<PolicyRow>& policy_registry() {
  static const std::vector<PolicyRow> rows = {
      {"full", "every token, exact", make_full_policy},
  };
  return rows;
}

std::unique_ptr<KvCachePolicy> make_policy(const PolicyContext& context, const nlohmann::json& spec) {
  std::string name = "full";
  nlohmann::json parameters = nlohmann::json::object();
  if (spec.is_string()) {
    name = spec.get<std::string>();
  } else if (spec.is_object()) {
    parameters = spec;
    const auto policy = parameters.find("policy");
    if (policy == parameters.end() || !policy->is_string()) {
      throw CacheError("kv_cache.policy: expected the name of a policy, found " +
                       (policy == parameters.end() ? std::string("nothing") : policy->dump()));
    }
    name = policy->get<std::string>();
    parameters.erase(policy);
  } else if (!spec.is_null()) {
    throw CacheError("kv_cache: expected a policy's name or an object, found " + std::string(spec.type_name()));
  }
  std::string known;
  for (const PolicyRow& row : policy_registry()) {
    if (row.name == name) return row.create(context, parameters);
    known += (known.empty() ? "\"" : ", \"") + std::string(row.name) + "\"";
  }
  throw CacheError("kv_cache: unknown policy \"" + name + "\"; known: " + known);
}

}  // namespace smartkv

#include "engine/model/model.h"

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> Model::make_policy(const PolicyContext& context, const nlohmann::json& spec) const {
  return smartkv::make_policy(context, spec);
}

}  // namespace smartkv

#include "engine/model/model.h"

#include <stdexcept>

#include "cache/policy.h"

namespace smartkv {

std::unique_ptr<KvCachePolicy> Model::make_policy(const PolicyContext& context, const nlohmann::json& spec) const {
  return smartkv::make_policy(context, spec);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): overrides keep it.
void Model::watch_residual(std::function<void(int64_t layer, float squares)> /*watch*/) {
  throw std::logic_error(config().name + ": this model does not show its residual stream");
}

}  // namespace smartkv

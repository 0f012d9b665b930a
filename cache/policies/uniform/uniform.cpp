#include "cache/policies/uniform/uniform.h"

#include "cache/parameters.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

std::unique_ptr<KvCachePolicy> make(std::string_view name, int k_bits, int v_bits, const PolicyContext& context,
                                    const nlohmann::json& parameters) {
  Parameters read{std::string(name), parameters};
  const int64_t window = read.integer("window", kPageTokens, 0, int64_t{1} << 24, "most recent tokens, exact");
  const Boundaries boundaries{window, read_prompt_stride(&read, kPromptStride), 0};
  read.done();
  return std::make_unique<StagedPolicy>(
      name, context, boundaries, std::make_unique<UniformStoreFactory>(uniform_layout(context.shape, k_bits, v_bits)));
}

}  // namespace

std::unique_ptr<KvCachePolicy> make_k8v8_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  return make("k8v8", 8, 8, context, parameters);
}
std::unique_ptr<KvCachePolicy> make_k8v4_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  return make("k8v4", 8, 4, context, parameters);
}
std::unique_ptr<KvCachePolicy> make_k4v4_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  return make("k4v4", 4, 4, context, parameters);
}
std::unique_ptr<KvCachePolicy> make_k3v3_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  return make("k3v3", 3, 3, context, parameters);
}
std::unique_ptr<KvCachePolicy> make_k2v2_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  return make("k2v2", 2, 2, context, parameters);
}

}  // namespace smartkv

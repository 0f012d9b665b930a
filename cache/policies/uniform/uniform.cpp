#include "cache/policies/uniform/uniform.h"

#include "cache/parameters.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using kernels::QuantizedLayout;

// Stores all pages in one layout, except for the first, which is in 8 bits: it holds the sinks, whose keys are unlike
// all others.
class UniformStore final : public PageStore {
 public:
  UniformStore(const PolicyContext& context, const QuantizedLayout& layout) : PageStore(context), layout_(layout) {}
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<UniformStore>(*this); }
  int64_t stable_bytes() const override { return bytes(); }

 private:
  QuantizedPageRef pack(int64_t, int64_t i, std::span<const kernels::TokenPlace> tokens) const override {
    return std::make_shared<QuantizedPage>(context().pool, layout(i), nullptr, kernels::PageSource{tokens});
  }
  int64_t page_bytes(int64_t i) const override { return quantized_bytes(shape(), layout(i)); }
  QuantizedLayout layout(int64_t page) const { return page == 0 ? widest_layout(shape()) : layout_; }

  QuantizedLayout layout_;
};

using UniformStoreFactory = StoreFactoryOf<UniformStore, false, QuantizedLayout>;

}  // namespace

std::unique_ptr<KvCachePolicy> make_uniform_policy(int k_bits, int v_bits, const PolicyContext& context,
                                                   const nlohmann::json& parameters) {
  std::string name = "k";
  name += std::to_string(k_bits) + 'v' + std::to_string(v_bits);
  Parameters read(name, parameters);
  const int64_t window = read.integer("window", kPageTokens, 0, int64_t{1} << 24, "most recent tokens, exact");
  const Boundaries boundaries{window, read_prompt_stride(&read, kPromptStride), 0};
  read.done();
  return std::make_unique<StagedPolicy>(
      name, context, boundaries, std::make_unique<UniformStoreFactory>(uniform_layout(context.shape, k_bits, v_bits)));
}

}  // namespace smartkv

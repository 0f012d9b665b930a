#include "cache/policies/uniform/uniform.h"

#include "cache/parameters.h"
#include "cache/quantized/quantized_sequence.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class UniformSequence final : public QuantizedSequence {
 public:
  UniformSequence(const PolicyContext& context, int64_t window, const kernels::QuantizedLayout& layout)
      : QuantizedSequence(context, {whole_pages(window)}), layout_(layout) {}
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<UniformSequence>(*this); }

 private:
  PageRef quantize(int64_t layer, const float* k, const float* v) override {
    return std::make_shared<QuantizedPage>(context().pool, layout(pages_of(layer)), nullptr, k, v);
  }
  int64_t new_page_bytes(int64_t i) const override { return quantized_bytes(shape(), layout(i)); }
  // The first page holds the sinks, whose keys are unlike all others: 8 bits.
  kernels::QuantizedLayout layout(int64_t page) const { return page == 0 ? widest_layout(shape()) : layout_; }

  kernels::QuantizedLayout layout_;
};

class UniformPolicy final : public KvCachePolicy {
 public:
  UniformPolicy(std::string_view name, const PolicyContext& context, int64_t window, int k_bits, int v_bits)
      : name_(name),
        context_(context),
        window_(window),
        layout_{kernels::uniform_runs(context.shape.head_dim, k_bits), kernels::uniform_runs(kPageTokens, v_bits)} {}

  std::string_view name() const override { return name_; }
  int64_t max_bytes(int64_t /*prompt_tokens*/, int64_t n_tokens) const override {
    const int64_t dense = std::min(n_tokens, window_ + 2 * kPageTokens);
    const int64_t pages = (n_tokens + kPageTokens - 1) / kPageTokens;
    return dense_bytes(context_.shape, dense) + pages * context_.shape.n_layers * quantized_bytes(context_.shape, layout_);
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t /*prompt_tokens*/) const override {
    return std::make_unique<UniformSequence>(context_, window_, layout_);
  }

 private:
  std::string_view name_;
  PolicyContext context_;
  int64_t window_;
  kernels::QuantizedLayout layout_;
};

std::unique_ptr<KvCachePolicy> make(std::string_view name, int k_bits, int v_bits, const PolicyContext& context,
                                    const nlohmann::json& parameters) {
  Parameters read{std::string(name), parameters};
  const int64_t window = read.integer("window", kPageTokens, 1, int64_t{1} << 24);
  read.done();
  check_quantizable(context.shape, name);
  return std::make_unique<UniformPolicy>(name, context, window, k_bits, v_bits);
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

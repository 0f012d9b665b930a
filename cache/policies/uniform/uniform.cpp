#include "cache/policies/uniform/uniform.h"

#include <algorithm>

#include "cache/parameters.h"
#include "cache/quantized/quantized_sequence.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

class UniformSequence final : public QuantizedSequence {
 public:
  UniformSequence(const PolicyContext& context, const Boundaries& boundaries, const kernels::QuantizedLayout& layout)
      : QuantizedSequence(context, boundaries), layout_(layout) {}
  std::unique_ptr<SequenceCache> fork() const override { return std::make_unique<UniformSequence>(*this); }

 private:
  PageRef quantize(int64_t, int64_t i, const float* k, const float* v) const override {
    return std::make_shared<QuantizedPage>(context().pool, layout(i), nullptr, k, v);
  }
  int64_t new_page_bytes(int64_t i) const override { return quantized_bytes(shape(), layout(i)); }
  // The first page holds the sinks, whose keys are unlike all others: 8 bits.
  kernels::QuantizedLayout layout(int64_t page) const { return page == 0 ? widest_layout(shape()) : layout_; }

  kernels::QuantizedLayout layout_;
};

class UniformPolicy final : public KvCachePolicy {
 public:
  UniformPolicy(std::string_view name, const PolicyContext& context, const Boundaries& boundaries, int k_bits, int v_bits)
      : name_(name),
        context_(context),
        boundaries_(boundaries),
        layout_{kernels::uniform_runs(context.shape.head_dim, k_bits), kernels::uniform_runs(kPageTokens, v_bits)} {}

  std::string_view name() const override { return name_; }
  int64_t max_bytes(int64_t prompt_tokens, int64_t n_tokens) const override {
    const CacheShape& shape = context_.shape;
    const int64_t pages = std::max<int64_t>(1, whole_pages(n_tokens) / kPageTokens);
    const int64_t packed = quantized_bytes(shape, widest_layout(shape)) + (pages - 1) * quantized_bytes(shape, layout_);
    return dense_bytes(shape, boundaries_of(prompt_tokens).most_in_tail(n_tokens)) + shape.n_layers * packed;
  }
  std::unique_ptr<SequenceCache> new_sequence(int64_t prompt_tokens) const override {
    return std::make_unique<UniformSequence>(context_, boundaries_of(prompt_tokens), layout_);
  }

 private:
  Boundaries boundaries_of(int64_t prompt_tokens) const {
    return {boundaries_.window, boundaries_.stride, prompt_tokens};
  }

  std::string_view name_;
  PolicyContext context_;
  Boundaries boundaries_;
  kernels::QuantizedLayout layout_;
};

std::unique_ptr<KvCachePolicy> make(std::string_view name, int k_bits, int v_bits, const PolicyContext& context,
                                    const nlohmann::json& parameters) {
  Parameters read{std::string(name), parameters};
  const int64_t window = read.integer("window", kPageTokens, 1, int64_t{1} << 24);
  const Boundaries boundaries{whole_pages(window), read_prompt_stride(&read, kPromptStride)};
  read.done();
  check_quantizable(context.shape, name);
  return std::make_unique<UniformPolicy>(name, context, boundaries, k_bits, v_bits);
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

#include "cache/policies/sparse/sparse.h"

#include <cmath>

#include "cache/parameters.h"
#include "cache/stores/page_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;
using kernels::QuantizedLayout;

struct SparseOptions {
  QuantizedLayout index;
  IndexedRows rows;  // Rows of every page except for the first.

  // The first page holds the sinks, which are unlike all other tokens. Its rows are dense, and every query reads them
  // all.
  IndexedRows rows_of(int64_t page) const {
    return page == 0 ? IndexedRows{static_cast<int32_t>(kPageTokens), 0} : rows;
  }
};

class SparseStore final : public PageStore {
 public:
  SparseStore(const PolicyContext& context, const SparseOptions& options) : PageStore(context), options_(options) {}
  std::unique_ptr<TokenStore> fork() const override { return std::make_unique<SparseStore>(*this); }
  int64_t stable_bytes() const override { return bytes(); }
  void add_details(std::map<std::string, double>* details) const override {
    int64_t read = 0;
    for (int64_t i = 0; i < n_pages(); ++i) read += options_.rows_of(i).read;
    (*details)["tokens_read"] = static_cast<double>(read);
    const double bits = options_.rows.bits > 0 ? options_.rows.bits : shape().type == kernels::KvType::kBf16 ? 16 : 32;
    (*details)["bits_k"] = (*details)["bits_v"] = bits;  // Ignores the first page.
  }

 private:
  QuantizedPageRef pack(int64_t, int64_t i, std::span<const kernels::TokenPlace> tokens) const override {
    return std::make_shared<QuantizedPage>(context().pool, options_.index, nullptr, kernels::PageSource{tokens},
                                           QuantizedPage::kAllHeads, rows(i));
  }
  IndexedRows rows(int64_t i) const override { return options_.rows_of(i); }
  int64_t page_bytes(int64_t i) const override {
    return quantized_bytes(shape(), options_.index) + indexed_bytes(shape(), options_.rows_of(i));
  }

  SparseOptions options_;
};

using SparseStoreFactory = StoreFactoryOf<SparseStore, false, SparseOptions>;

}  // namespace

std::unique_ptr<KvCachePolicy> make_sparse_policy(const PolicyContext& context, const nlohmann::json& parameters) {
  Parameters parse("sparse", parameters);
  const double share = parse.number("read", 0.25, 1.0 / kPageTokens, 1, "share that a query reads, in 64ths of a page");
  const int64_t bits = parse.integer_choice("index_bits", 2, {2, 3, 4, 8}, "per key channel of the index");
  const std::string kept = parse.choice("kept", "dense", {"dense", "k8v8", "k4v4"}, "the tokens outside the window");
  const int64_t window = parse.integer("window", kPageTokens, 0, int64_t{1} << 24, "most recent tokens, always read");
  parse.done();
  SparseOptions options;
  options.index.k = kernels::uniform_runs(context.shape.head_dim, static_cast<int>(bits));
  options.index.v.dropped = kPageTokens / 4;
  options.rows = {static_cast<int32_t>(std::ceil(share * kPageTokens)), kept == "dense" ? 0 : kept == "k8v8" ? 8 : 4};
  return std::make_unique<StagedPolicy>("sparse", context, Boundaries{window, Boundaries::kNever, 0},
                                        std::make_unique<SparseStoreFactory>(options));
}

}  // namespace smartkv

#include "cache/policies/channel_packed/channel_packed.h"

#include <algorithm>

#include "cache/policies/channel_packed/channel_store.h"
#include "cache/policies/channel_packed/cut_store.h"
#include "cache/stores/staged_policy.h"

namespace smartkv {
namespace {

using kernels::kPageTokens;

// Returns the bits per value, everything counted, of a sequence of `horizon` tokens with all layers packed.
double packed_bits(const CacheShape& shape, const ChannelOptions& options, int64_t window, int64_t horizon) {
  const ChannelLayouts layouts = channel_layouts(shape, options);
  const int64_t page = quantized_bytes(shape, layouts.packed) + quantized_bytes(shape, layouts.residual);
  const int64_t pages = (horizon - window) / kPageTokens;
  const int64_t bytes =
      dense_bytes(shape, window) + shape.n_layers * (quantized_bytes(shape, widest_layout(shape)) + (pages - 1) * page);
  return 8 * static_cast<double>(bytes) /
         static_cast<double>(2 * shape.n_layers * shape.n_kv_heads * shape.head_dim * horizon);
}

// Chooses the widest codes for which at least half of the channels fit into `bits`, then as many channels as fit.
// Throws CacheError if none do.
void fit_bits(const CacheShape& shape, double bits, int64_t window, int64_t horizon, ChannelOptions* options) {
  constexpr std::array<std::pair<int, int>, 4> kUniformWidths = {{{8, 8}, {8, 4}, {4, 4}, {3, 3}}};
  double least = 0;
  for (const auto& [key_bits, value_bits] : kUniformWidths) {
    options->key_bits = key_bits;
    options->value_bits = value_bits;
    for (int64_t channels = shape.head_dim - 4; channels >= shape.head_dim / 2; channels -= 4) {
      options->key_channels = channels;
      least = packed_bits(shape, *options, window, horizon);
      if (least <= bits) return;
    }
  }
  throw CacheError(
      "kv_cache.bits: expected at least " + std::to_string(least) +
      " (half of the key channels in 3 bits, the others in 2, values in 3, and the window, averaged over " +
      std::to_string(horizon) + " tokens), found " + std::to_string(bits));
}

}  // namespace

std::vector<CacheMetric> channel_packed_metrics() {
  return {{"packed_layers",
           "packed_layers",
           "Fraction of layers that were packed at the end of a sequence.",
           {0, 0.25, 0.5, 0.75, 0.9, 1}},
          {"channel_backoffs", "channel_backoffs_total", "Back-offs: layers that the guard returned to all channels."},
          {"channel_checks", "channel_checks_total",
           "Checks by the guard: of a layer's attention (storage quantized) or of the logits (storage exact)."},
          {"logit_kl",
           "channel_logit_kl",
           "KL divergence, in nats, of the logits from those over the full cache, at the last check of a sequence.",
           {0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1, 3}}};
}

namespace {

constexpr int64_t kMost = int64_t{1} << 24;
constexpr std::string_view kTopHelp = "most attended or likeliest tokens whose overlap is measured";

void read_selection(Parameters* parameters, SelectionOptions* options) {
  Parameters& read = *parameters;
  options->query_aware = read.choice("importance", "query_key", {"query_key", "magnitude"},
                                     "of a key's channel: by queries and keys, or by keys alone") == "query_key";
  options->decay = read.number("decay", options->decay, 0, 1, "of the means behind importance, at each boundary");
  options->update_every = read.integer("update_every", options->update_every, 1, kMost, "tokens between selections");
  options->stable_updates = read.integer("stable_updates", options->stable_updates, 1, 1000, "in a row before packing");
  options->retention = read.number("retention", options->retention, 0, 1, "share of the best worth that is stable");
  options->probes = read.integer("probes", options->probes, 1, kPageTokens, "queries of a comparison of attention");
}

// Reads the limits of a comparison of `what`. Beyond them all channels are restored.
void read_limits(Parameters* read, const std::string& prefix, const std::string& what, FidelityLimits* limits) {
  limits->least_overlap =
      read->number("least_" + prefix + "overlap", limits->least_overlap, 0, 1, what + ": overlap of `top`");
  limits->most_margin_drift = read->number("most_" + prefix + "margin_drift", limits->most_margin_drift, 0, 1e30,
                                           what + ": change of the distance between the two best, in nats");
  limits->most_kl = read->number("most_" + prefix + "kl", limits->most_kl, 0, 1e30, what + ": divergence, in nats");
}

int64_t read_cut(Parameters* read, const char* key, int64_t fallback, int64_t head_dim, std::string_view help) {
  const int64_t channels = read->integer(key, fallback, 16, head_dim, help);
  if (channels % 16 == 0) return channels;
  throw CacheError("kv_cache." + std::string(key) + ": expected a multiple of 16, found " + std::to_string(channels));
}

std::unique_ptr<StoreFactory> read_cuts(const PolicyContext& context, Parameters* read) {
  const int64_t dim = context.shape.head_dim;
  if (!context.pool->backend()->cuts_pages()) {
    throw CacheError("kv_cache.storage: expected \"quantized\" on this device, found \"exact\"");
  }
  read->refuse({"bits", "horizon", "key_bits", "value_bits"}, "\"storage\": \"quantized\"");
  CutOptions options;
  options.key_channels = read_cut(read, "key_channels", std::max<int64_t>(16, dim * 3 / 4 / 16 * 16), dim,
                                  "of a packed key; three quarters by default; whole 16s, with \"quantized\" whole 4s");
  options.value_channels = read_cut(read, "value_channels", dim, dim, "of a packed value, whole 16s; \"exact\" only");
  read_selection(read, &options);
  // The caches of other tensor-parallel ranks cannot be told yet which check they follow.
  options.check_every = read->integer("check_every", context.ranks() > 1 ? 0 : options.check_every, 0, kMost,
                                      "tokens between checks; \"exact\": of an answer; \"quantized\": 512 by default");
  if (context.ranks() > 1 && options.check_every > 0) {
    throw CacheError("kv_cache.check_every: expected 0 with tensor_parallel, found " +
                     std::to_string(options.check_every));
  }
  options.attention.top = options.logits.top = read->integer("top", options.attention.top, 1, kPageTokens, kTopHelp);
  read_limits(read, "", "attention", &options.attention);
  read_limits(read, "logit_", "logits, \"exact\" only", &options.logits);
  const std::string name = read->text("worth", "", "name of a loaded file of `smartkv train-probe`; \"exact\" only");
  if (!name.empty()) {
    if (!context.load_worth) {
      throw CacheError("kv_cache.worth: expected none, because no worth files can be loaded here, found \"" + name +
                       '"');
    }
    options.worth = context.load_worth(name);
  }
  return std::make_unique<CutStoreFactory>(std::move(options));
}

// Reads the options of quantized storage: packed pages, and a residual for the channels that they leave out.
std::unique_ptr<StoreFactory> read_quantized(const PolicyContext& context, Parameters* read, int64_t window) {
  const CacheShape& shape = context.shape;
  read->refuse({"value_channels", "worth", "least_logit_overlap", "most_logit_margin_drift", "most_logit_kl"},
               "\"storage\": \"exact\"");
  ChannelOptions options;
  const double bits = read->number(
      "bits", 0, 1, 16, "per value, instead of `key_channels`, `key_bits`, `value_bits`; \"quantized\" only");
  const int64_t horizon = read->integer("horizon", 4096, 1024, kMost, "tokens over which `bits` hold");
  options.key_channels = read->integer("key_channels", shape.head_dim * 3 / 4, 4, shape.head_dim - 4);
  options.key_bits = static_cast<int>(read->integer_choice("key_bits", 8, {8, 4, 3}, "of a key; \"quantized\" only"));
  options.value_bits = static_cast<int>(read->integer_choice("value_bits", 8, {8, 4, 3, 2}, "of a value, likewise"));
  if (bits > 0) {
    for (const char* key : {"key_channels", "key_bits", "value_bits"}) {
      if (read->has(key)) {
        throw CacheError("kv_cache.bits: expected either bits or " + std::string(key) + ", found both");
      }
    }
    fit_bits(shape, bits, window, horizon, &options);
  } else {
    read->refuse({"horizon"}, "bits");
    if (options.key_channels % 4 != 0) {
      throw CacheError("kv_cache.key_channels: expected a multiple of 4, found " +
                       std::to_string(options.key_channels));
    }
  }
  read_selection(read, &options);
  options.check_every = read->integer("check_every", options.check_every, 1, kMost);
  options.limits.top = read->integer("top", options.limits.top, 1, kPageTokens, kTopHelp);
  read_limits(read, "", "attention", &options.limits);
  return std::make_unique<ChannelStoreFactory>(options);
}

}  // namespace

std::unique_ptr<KvCachePolicy> make_channel_packed_policy(const PolicyContext& context,
                                                          const nlohmann::json& parameters) {
  Parameters read("channel_packed", parameters);
  const int64_t window = whole_pages(read.integer("window", kPageTokens, 1, kMost, "most recent tokens, exact"));
  const int64_t stride = read_prompt_stride(&read, kPrefillChunk);
  const bool widths = read.has("bits") || read.has("key_bits") || read.has("value_bits");
  const bool quantized = widths || !context.pool->backend()->cuts_pages();
  const bool exact = read.choice("storage", quantized ? "quantized" : "exact", {"exact", "quantized", "codes"},
                                 "channels in 16 bits, or quantized, as with given widths and on GPUs; \"codes\" is "
                                 "the old name of \"quantized\"") == "exact";
  std::unique_ptr<StoreFactory> store = exact ? read_cuts(context, &read) : read_quantized(context, &read, window);
  read.done();
  return std::make_unique<StagedPolicy>("channel_packed", context, Boundaries{window, stride, 0}, std::move(store));
}

}  // namespace smartkv

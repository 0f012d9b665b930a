#include "engine/torch/torch_llama_backend.h"

#include <torch/torch.h>

#include <algorithm>
#include <limits>

#include "engine/torch/plain_errors.h"
#include "engine/torch/torch_llama.h"
#include "engine/torch/torch_rank_group.h"
#include "engine/weights/projections.h"

namespace smartkv {
namespace {

using torch::Tensor;

struct Linear {
  Tensor weight;  // [out, in]
  Tensor bias;    // f32 [out]; undefined if there is none
};

struct GatedMlp {
  int64_t size;  // rows of gate and up
  Linear gate_up, down;
};

struct Layer {
  // f32 [hidden_size]. Applied to the input and the output; undefined where there is none (norm_names()).
  Tensor attention_norm, attention_output_norm, mlp_norm, mlp_output_norm;
  Linear qkv, output;
  std::vector<GatedMlp> mlps;  // One if the layer is dense, else its experts and the shared one, if there is one.
  Linear router, shared_gate;  // undefined if the layer is dense, or has no shared expert
};

// Reads weights as tensors on the device.
class Reader {
 public:
  Reader(const Weights& weights, torch::Dtype dtype, torch::Device device)
      : weights_(weights), dtype_(dtype), device_(device) {}

  Tensor vector(const std::string& name, int64_t size) const {
    const int64_t shape[] = {size};
    const std::vector<float> values = weights_.read(name, shape);
    return torch::tensor(values).to(device_);
  }
  // Returns the sources' matrices [rows, in] stacked along their rows, and with `bias` their biases.
  Linear linear(std::initializer_list<std::pair<std::string, int64_t>> sources, int64_t in, bool bias) const {
    std::vector<Tensor> matrices, biases;
    for (const auto& [name, rows] : sources) {
      matrices.push_back(matrix(name + ".weight", rows, in));
      if (bias) biases.push_back(vector(name + ".bias", rows));
    }
    return {matrices.size() == 1 ? matrices[0] : torch::cat(matrices), bias ? torch::cat(biases) : Tensor()};
  }
  Tensor matrix(const std::string& name, int64_t rows, int64_t columns) const {
    constexpr int64_t kRows = 64;  // rows expanded to f32 at a time
    Tensor result = torch::empty({rows, columns}, dtype_);
    at::parallel_for(0, (rows + kRows - 1) / kRows, 1, [&](int64_t begin, int64_t end) {
      const c10::InferenceMode inference;  // the mode is per thread
      Tensor block = torch::empty({kRows, columns});
      for (int64_t i = begin; i < end; ++i) {
        const int64_t n = std::min(kRows, rows - i * kRows);
        weights_.read_rows(name, i * kRows, n, block.data_ptr<float>());
        result.narrow(0, i * kRows, n).copy_(block.narrow(0, 0, n));
      }
    });
    return result.to(device_);
  }

 private:
  const Weights& weights_;
  torch::Dtype dtype_;
  torch::Device device_;
};

// Returns the dtype of weights and products.
torch::Dtype product_dtype(ProductType type, torch::Device device) {
  if (type == ProductType::kF16) return torch::kFloat16;
  if (type == ProductType::kF32) return torch::kFloat32;
  return device.is_cpu() ? cpu_product_dtype() : torch::kBFloat16;
}

class TorchBackend final : public LlamaBackend {
 public:
  void watch_residual(std::function<void(int64_t layer, float squares)> watch) override { watch_ = std::move(watch); }
  TorchBackend(const Weights& weights, ProductType type, torch::Device device,
               const std::function<void(double)>& progress, TorchRankGroup* ranks, std::unique_ptr<PassGraphs> graphs)
      : config_(weights.config()),
        dtype_(type == ProductType::kF32 ? torch::kFloat32 : torch::kBFloat16),
        product_dtype_(product_dtype(type, device)),
        device_(device),
        ranks_(ranks),
        graphs_(std::move(graphs)) {
    const c10::InferenceMode inference;
    if (graphs_ != nullptr) {
      const auto on = torch::TensorOptions(device);
      graph_ids_ = torch::zeros({PassGraphs::kMostRows}, on.dtype(torch::kInt32));
      graph_x_ = torch::zeros({PassGraphs::kMostRows, config_.hidden_size}, on);
    }
    const Reader reader(weights, product_dtype_, device);
    const ModelConfig& c = config_;
    const int64_t hidden = c.hidden_size, q = c.n_heads * c.head_dim, kv = c.n_kv_heads * c.head_dim;
    const NormNames norms = norm_names(c.norm_placement);
    for (int64_t i = 0; i < c.n_layers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".", attention = layer + "self_attn.",
                        mlp = layer + "mlp.";
      const bool output_bias = c.attention_bias && weights.find(attention + "o_proj.bias");
      const auto norm = [&](const std::string& name) {
        return name.empty() ? Tensor() : reader.vector(layer + name + ".weight", hidden);
      };
      layers_.push_back(
          {norm(norms.attention_input), norm(norms.attention_output), norm(norms.mlp_input), norm(norms.mlp_output),
           reader.linear({{attention + "q_proj", q}, {attention + "k_proj", kv}, {attention + "v_proj", kv}}, hidden,
                         c.attention_bias),
           reader.linear({{attention + "o_proj", hidden}}, q, output_bias)});
      Layer& packed = layers_.back();
      for (const auto& [prefix, size] : mlps_of(c, i)) {
        packed.mlps.push_back(
            {size, reader.linear({{prefix + "gate_proj", size}, {prefix + "up_proj", size}}, hidden, c.mlp_bias),
             reader.linear({{prefix + "down_proj", hidden}}, size, c.mlp_bias)});
      }
      if (c.has_experts(i)) packed.router = reader.linear({{mlp + "gate", c.n_experts}}, hidden, c.router_bias);
      if (packed.mlps.size() > static_cast<size_t>(c.n_experts) && c.has_experts(i)) {
        packed.shared_gate = reader.linear({{mlp + "shared_expert_gate", 1}}, hidden, false);
      }
      if (progress) progress(static_cast<double>(i + 1) / static_cast<double>(c.n_layers + 1));
    }
    final_norm_ = reader.vector("model.norm.weight", hidden);
    embedding_ = reader.matrix("model.embed_tokens.weight", c.vocab_size, hidden);
    if (progress) progress(1);
    if (!has_head()) return;
    // The head is f32: LibTorch rounds the result of a 16-bit product to 16 bits, so logits around 20 would have steps
    // of 1/8 and the best ones would tie.
    const Reader f32(weights, torch::kFloat32, device);
    if (c.tie_word_embeddings) {
      head_ = embedding_.to(torch::kFloat32);
    } else {
      const std::span<const int32_t> tokens = weights.output_tokens();
      if (!tokens.empty())
        output_tokens_ = torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end())).to(device);
      head_ = f32.matrix("lm_head.weight", tokens.empty() ? c.vocab_size : static_cast<int64_t>(tokens.size()), hidden);
    }
  }

  void embed(std::span<const TokenId> tokens) override {
    rows_ = static_cast<int64_t>(tokens.size());
    graph_rows_ = 0;
    set_threads();
    plain_errors([&] {
      const c10::InferenceMode inference;
      x_ = embedding_.index_select(0, host_ids(tokens).to(device_)).to(torch::kFloat32);
      scale_embeddings();
    });
  }

  // Padding rows hold the embeddings of tokens of earlier passes.
  void start(std::span<const TokenId> tokens, float* qkv) override {
    const int64_t graph_rows = graphs_ == nullptr ? 0 : graphs_->padded(static_cast<int64_t>(tokens.size()));
    if (graph_rows == 0) return LlamaBackend::start(tokens, qkv);
    rows_ = static_cast<int64_t>(tokens.size());
    graph_rows_ = graph_rows;
    set_threads();
    plain_errors([&] {
      const c10::InferenceMode inference;
      graph_ids_.narrow(0, 0, rows_).copy_(host_ids(tokens));
      x_ = graph_x_.narrow(0, 0, graph_rows_);
      graphs_->run(graph_rows_, 0, {nullptr, qkv}, [this, qkv] {
        x_.copy_(embedding_.index_select(0, graph_ids_.narrow(0, 0, graph_rows_)));
        scale_embeddings();
        project(0, qkv);
      });
    });
  }

  void advance(int64_t layer, const void* attended, float* qkv) override {
    run(layer + 1, {attended, qkv}, [this, layer, attended, qkv] { LlamaBackend::advance(layer, attended, qkv); });
  }

  void finish(int64_t layer, const void* attended, float* logits) override {
    run(layer + 1, {attended, logits},
        [this, layer, attended, logits] { LlamaBackend::finish(layer, attended, logits); });
  }

  int64_t least_rows() const override { return graphs_ == nullptr ? 0 : PassGraphs::kMostRows; }

  void project(int64_t layer, float* qkv) override {
    plain_errors([&] {
      const c10::InferenceMode inference;
      const Layer& w = layers_[static_cast<size_t>(layer)];
      write_product(norm_input(w.attention_norm), w.qkv,
                    rows_at(qkv, x_.size(0), w.qkv.weight.size(0), torch::kFloat32));
    });
  }

  void keep_rows(std::span<const RowRange> rows) override {
    plain_errors([&] {
      const c10::InferenceMode inference;
      std::vector<Tensor> kept;
      int64_t n = 0;
      for (const RowRange& range : rows) {
        kept.push_back(x_.narrow(0, range.first, range.n));
        n += range.n;
      }
      if (n == rows_) return;  // all rows are kept
      x_ = kept.empty() ? x_.narrow(0, 0, 0) : torch::cat(kept);
      rows_ = n;
      graph_rows_ = 0;
    });
  }

  void finish_layer(int64_t layer, const void* attended) override {
    plain_errors([&] {
      const c10::InferenceMode inference;
      const Layer& w = layers_[static_cast<size_t>(layer)];
      const int64_t q_width = config_.n_heads * config_.head_dim;
      add_branch(rows_at(const_cast<void*>(attended), x_.size(0), q_width, dtype_).to(product_dtype_), w.output,
                 w.attention_output_norm);
      if (watch_ != nullptr) {
        const Tensor squares = x_.square().sum(1).cpu();
        for (int64_t row = 0; row < squares.size(0); ++row) watch_(layer, squares[row].item<float>());
      }
      const Tensor input = norm_input(w.mlp_norm);
      if (w.router.weight.defined()) {
        add_normed(run_experts(w, input), w.mlp_output_norm);
      } else {
        add_branch(gated(w.mlps.front(), input), w.mlps.front().down, w.mlp_output_norm);
      }
    });
  }

  void head(float* logits) override {
    if (!has_head()) return;
    plain_errors([&] {
      const c10::InferenceMode inference;
      const Tensor x = norm(x_, final_norm_);
      Tensor out = rows_at(logits, x.size(0), config_.vocab_size, torch::kFloat32);
      if (output_tokens_.defined()) {
        out.fill_(-std::numeric_limits<float>::infinity());
        out.index_copy_(1, output_tokens_, torch::linear(x, head_));
      } else {
        torch::mm_out(out, x, head_.t());
      }
      if (config_.logits_divisor != 1.0) out.div_(config_.logits_divisor);
      if (config_.logit_soft_cap != 0.0) {
        out.div_(config_.logit_soft_cap).tanh_().mul_(config_.logit_soft_cap);
      }
    });
  }

  int64_t weight_bytes() const override {
    size_t bytes = final_norm_.nbytes() + embedding_.nbytes();
    if (has_head() && !head_.is_same(embedding_)) bytes += head_.nbytes();
    for (const Layer& layer : layers_) {
      for (const Tensor* norm :
           {&layer.attention_norm, &layer.attention_output_norm, &layer.mlp_norm, &layer.mlp_output_norm}) {
        if (norm->defined()) bytes += norm->nbytes();
      }
      std::vector<const Linear*> linears = {&layer.qkv, &layer.output, &layer.router, &layer.shared_gate};
      for (const GatedMlp& mlp : layer.mlps) linears.insert(linears.end(), {&mlp.gate_up, &mlp.down});
      for (const Linear* linear : linears) {
        if (linear->weight.defined()) bytes += linear->weight.nbytes();
        if (linear->bias.defined()) bytes += linear->bias.nbytes();
      }
    }
    return static_cast<int64_t>(bytes);
  }
  bool batch_invariant() const override { return false; }
  bool device_rows() const override { return !device_.is_cpu() || graphs_ != nullptr; }

 private:
  static void set_threads() {
    thread_local const bool threads_set = (at::init_num_threads(), true);  // OpenMP's number of threads is per thread
    static_cast<void>(threads_set);
  }
  static Tensor host_ids(std::span<const TokenId> tokens) {
    return torch::from_blob(const_cast<TokenId*>(tokens.data()), {static_cast<int64_t>(tokens.size())}, torch::kInt32);
  }
  void scale_embeddings() {
    if (config_.embedding_multiplier != 1.0) x_.mul_(config_.embedding_multiplier);
  }

  // Runs a piece of the pass, through its graph if the pass uses graphs.
  template <typename Work>
  void run(int64_t piece, const PassGraphs::Places& places, const Work& work) {
    if (graph_rows_ == 0) return work();
    plain_errors([&] {
      const c10::InferenceMode inference;
      graphs_->run(graph_rows_, piece, places, work);
    });
  }

  bool has_head() const { return ranks_ == nullptr || ranks_->rank() == 0; }

  Tensor norm(const Tensor& x, const Tensor& weight) const {
    return torch::rms_norm(x, {x.size(1)}, weight, config_.rms_norm_eps);
  }

  // Returns the input of attention or of the MLP.
  Tensor norm_input(const Tensor& weight) const {
    return (weight.defined() ? norm(x_, weight) : x_).to(product_dtype_);
  }

  // Wraps rows of the caller's memory on this backend's device. Naming the device spares a query to the driver.
  Tensor rows_at(void* rows, int64_t n, int64_t columns, torch::Dtype dtype) const {
    return at::for_blob(rows, {n, columns})
        .options(torch::TensorOptions(device_).dtype(dtype))
        .target_device(device_)
        .make_tensor();
  }

  // Sets out, f32 [rows, out], to x W^T + bias.
  void write_product(const Tensor& x, const Linear& linear, Tensor out) const {
    if (product_dtype_ == torch::kFloat32) {
      torch::mm_out(out, x, linear.weight.t());
    } else {
      out.copy_(torch::linear(x, linear.weight));
    }
    if (linear.bias.defined()) out.add_(linear.bias);
  }

  // Adds x W^T + bias to the residual stream, after the norm of the output, if there is one, and the residual
  // multiplier.
  void add_branch(const Tensor& x, const Linear& linear, const Tensor& norm_weight) {
    const bool normed = norm_weight.defined();
    if (product_dtype_ == torch::kFloat32 && !normed && !linear.bias.defined() && ranks_ == nullptr) {
      x_.addmm_(x, linear.weight.t(), 1, config_.residual_multiplier);
      return;
    }
    Tensor branch = torch::linear(x, linear.weight);
    if (linear.bias.defined() || normed || ranks_ != nullptr) branch = branch.to(torch::kFloat32);
    if (ranks_ != nullptr) ranks_->sum(branch);
    if (linear.bias.defined()) branch.add_(linear.bias);
    add_normed(branch, norm_weight);
  }
  void add_normed(const Tensor& branch, const Tensor& norm_weight) {
    x_.add_(norm_weight.defined() ? norm(branch, norm_weight) : branch, config_.residual_multiplier);
  }

  // Returns what an MLP makes of gate and up.
  Tensor gated(const GatedMlp& mlp, const Tensor& input) const {
    Tensor gate_up = torch::linear(input, mlp.gate_up.weight);
    if (mlp.gate_up.bias.defined()) gate_up.add_(mlp.gate_up.bias);
    return activated(config_.activation, gate_up.narrow(1, 0, mlp.size), gate_up.narrow(1, mlp.size, mlp.size));
  }

  // Returns the weighted sum of the experts of each row of `input`, f32.
  Tensor run_experts(const Layer& layer, const Tensor& input) const {
    const auto product = [](const Tensor& x, const Linear& linear) {
      const Tensor y = torch::linear(x, linear.weight).to(torch::kFloat32);
      return linear.bias.defined() ? y + linear.bias : y;
    };
    const Tensor probabilities = product(input, layer.router).softmax(1);
    auto [weights, chosen] = probabilities.topk(config_.experts_per_token, 1);
    if (config_.normalized_experts) weights = weights / weights.sum(1, true);
    Tensor sum = torch::zeros({input.size(0), config_.hidden_size}, torch::TensorOptions(device_));
    const auto output = [&](const GatedMlp& mlp, const Tensor& rows) { return product(gated(mlp, rows), mlp.down); };
    for (int64_t expert = 0; expert < config_.n_experts; ++expert) {
      const Tensor places = chosen.eq(expert).nonzero();  // [n, 2]: row, and which of its experts
      if (places.size(0) == 0) continue;
      const Tensor rows = places.select(1, 0), weight = weights.index({rows, places.select(1, 1)}).unsqueeze(1);
      sum.index_add_(0, rows, weight * output(layer.mlps[static_cast<size_t>(expert)], input.index_select(0, rows)));
    }
    if (layer.shared_gate.weight.defined()) {
      sum.add_(product(input, layer.shared_gate).sigmoid() * output(layer.mlps.back(), input));
    }
    return sum;
  }

  ModelConfig config_;
  torch::Dtype dtype_;  // dtype of attention's results
  std::function<void(int64_t layer, float squares)> watch_;
  torch::Dtype product_dtype_;  // dtype of weights and of the activations that they multiply
  torch::Device device_;
  TorchRankGroup* ranks_;               // null if this process computes alone
  std::unique_ptr<PassGraphs> graphs_;  // null if passes run without graphs
  std::vector<Layer> layers_;
  Tensor final_norm_, embedding_;
  Tensor head_;  // f32 [n_outputs, hidden_size]
  // Tokens of a head that has rows for some tokens only; undefined if it has vocab_size rows in order
  Tensor output_tokens_;
  // Inputs of passes that run as graphs. They have room for kMostRows rows and never move.
  Tensor graph_ids_;  // int32 [kMostRows]
  Tensor graph_x_;    // f32 [kMostRows, hidden_size]

  // State of the pass.
  Tensor x_;                // residual stream, f32 [rows, hidden_size]; a part of graph_x_ if the pass runs as graphs
  int64_t rows_ = 0;        // rows without padding
  int64_t graph_rows_ = 0;  // rows with padding; 0 if the pass runs without graphs
};

}  // namespace

std::unique_ptr<LlamaBackend> make_torch_backend(const Weights& weights, ProductType type, const std::string& device,
                                                 int threads, const std::function<void(double)>& progress,
                                                 TorchRankGroup* ranks, std::unique_ptr<PassGraphs> graphs) {
  at::set_num_threads(threads);
  return plain_errors([&] {
    torch::Device on(device);
    if (on.is_cuda() && !on.has_index()) on.set_index(0);  // the same device as its caches (engine/model/device.h)
    return std::make_unique<TorchBackend>(weights, type, on, progress, ranks, std::move(graphs));
  });
}

}  // namespace smartkv

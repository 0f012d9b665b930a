// A KvBackend that forwards every call to another one. Subclasses override the calls that differ.
#pragma once

#include <memory>
#include <span>
#include <string_view>
#include <utility>

#include "kernels/kv_backend.h"

namespace smartkv::kernels {

class ForwardingKvBackend : public KvBackend {
 public:
  explicit ForwardingKvBackend(std::shared_ptr<KvBackend> to) : to_(std::move(to)) {}

  std::string_view name() const override { return to_->name(); }
  bool batch_invariant() const override { return to_->batch_invariant(); }
  void check(const AttentionShape& shape) const override { to_->check(shape); }

  std::byte* allocate(size_t bytes) override { return to_->allocate(bytes); }
  void release(std::byte* memory, size_t bytes) noexcept override { to_->release(memory, bytes); }
  bool holds(const void* address) const override { return to_->holds(address); }

  void move(KvType type, int64_t head_dim, std::span<const TokenMove> moves) override {
    to_->move(type, head_dim, moves);
  }
  void copy(std::span<const PageCopy> copies) override { to_->copy(copies); }
  void encode(KvType type, int64_t head_dim, std::span<const PageEncode> pages) override {
    to_->encode(type, head_dim, pages);
  }
  bool cuts_pages() const override { return to_->cuts_pages(); }
  void cut(KvType type, int64_t head_dim, std::span<const PageCut> pages) override { to_->cut(type, head_dim, pages); }
  void read(KvType type, int64_t head_dim, std::span<const PageRead> pages) override {
    to_->read(type, head_dim, pages);
  }
  void page_stats(KvType type, int64_t head_dim, std::span<const PageStats> pages) override {
    to_->page_stats(type, head_dim, pages);
  }
  void multiply_keys(KvType type, int64_t head_dim, std::span<const KeyProducts> products) override {
    to_->multiply_keys(type, head_dim, products);
  }
  void finish() override { to_->finish(); }
  void download(const std::byte* page, size_t bytes, void* to) override { to_->download(page, bytes, to); }
  void upload(const void* from, size_t bytes, std::byte* page) override { to_->upload(from, bytes, page); }

  void qk_norm_rope(const AttentionShape& shape, const HeadRows& rows) override { to_->qk_norm_rope(shape, rows); }
  void write(KvType type, int64_t n_kv_heads, int64_t head_dim, const PageWrite& rows) override {
    to_->write(type, n_kv_heads, head_dim, rows);
  }
  void forget_writes() noexcept override { to_->forget_writes(); }
  void apply_writes() override { to_->apply_writes(); }
  std::shared_ptr<KvBackend> with_host_pages() override { return to_->with_host_pages(); }
  bool prefetches() const override { return to_->prefetches(); }
  void prefetch(std::span<const KvSegment> segments) override { to_->prefetch(segments); }
  void attention(const AttentionShape& shape, std::span<const AttentionTask> tasks) override {
    to_->attention(shape, tasks);
  }
  void attention_mass(const AttentionShape& shape, std::span<const AttentionMassTask> tasks) override {
    to_->attention_mass(shape, tasks);
  }
  DeviceSampler* device_sampler() override { return to_->device_sampler(); }
  std::span<const std::unique_ptr<PolicyKernels>> policy_kernels() const override { return to_->policy_kernels(); }

 private:
  std::shared_ptr<KvBackend> to_;
};

}  // namespace smartkv::kernels

// Base class of sequence caches that consist of several caches fed with the same keys and values. The model reads the
// first one.
#pragma once

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cache/sequence_cache.h"

namespace smartkv {

// reserve(), write(), advance(), truncate() and commit() go to all caches. next_boundary() is the nearest of all, and
// max_growth() the sum. Everything else is forwarded to the first cache. Subclasses implement fork() and resume().
// save() is not supported.
class ForwardingCache : public SequenceCache {
 public:
  int64_t tokens() const override { return first().tokens(); }
  int64_t committed() const override { return first().committed(); }
  void reserve(int64_t n) override {
    for (SequenceCache* cache : all_) cache->reserve(n);
  }
  void write(int64_t layer, const KvRows& rows) override {
    for (SequenceCache* cache : all_) cache->write(layer, rows);
  }
  bool wants_hidden() const override {
    return std::ranges::any_of(all_, [](const SequenceCache* cache) { return cache->wants_hidden(); });
  }
  void show_hidden(int64_t layer, const void* rows, int64_t n) override {
    for (SequenceCache* cache : all_) {
      if (cache->wants_hidden()) cache->show_hidden(layer, rows, n);
    }
  }
  void view(int64_t layer, int64_t n_new, std::vector<kernels::KvSegment>* segments) const override {
    first().view(layer, n_new, segments);
  }
  void advance(int64_t n) override {
    for (SequenceCache* cache : all_) cache->advance(n);
  }
  void truncate(int64_t n_tokens) override {
    for (SequenceCache* cache : all_) cache->truncate(n_tokens);
  }
  void commit(int64_t n_tokens) override {
    for (SequenceCache* cache : all_) cache->commit(n_tokens);
  }
  int64_t next_boundary() const override {
    int64_t boundary = kNoBoundary;
    for (const SequenceCache* cache : all_) boundary = std::min(boundary, cache->next_boundary());
    return boundary;
  }
  bool wants_check() const override { return first().wants_check(); }
  void follow(const LogitCheck& check) override { all_[0]->follow(check); }
  LogitCheck judge(std::span<const float> exact, std::span<const float> own) override {
    return all_[0]->judge(exact, own);
  }
  TokenRange probes(int64_t n) const override { return first().probes(n); }
  void observe(int64_t layer, const Probe& probe) override { all_[0]->observe(layer, probe); }
  int64_t max_growth(int64_t n) const override {
    int64_t bytes = 0;
    for (const SequenceCache* cache : all_) bytes += cache->max_growth(n);
    return bytes;
  }
  std::vector<int64_t> positions(int64_t layer, int64_t head) const override { return first().positions(layer, head); }
  CacheStats stats() const override { return first().stats(); }
  int64_t stable_bytes() const override { return first().stable_bytes(); }
  std::map<std::string, double> details() const override { return first().details(); }

 protected:
  // The caches must outlive this object.
  explicit ForwardingCache(std::vector<SequenceCache*> caches) : all_(std::move(caches)) {}
  const SequenceCache& first() const { return *all_[0]; }
  void replace_first(SequenceCache* cache) { all_[0] = cache; }

 private:
  std::vector<SequenceCache*> all_;
};

}  // namespace smartkv

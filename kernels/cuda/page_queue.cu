#include "kernels/cuda/page_queue.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {
namespace {

template <typename T>
const T* staged_at(const std::byte* staged, size_t offset) {
  return reinterpret_cast<const T*>(staged + offset);
}

size_t floats_of(const PageRead& read, int64_t head_dim) {
  const int sides = (read.k != nullptr ? 1 : 0) + (read.v != nullptr ? 1 : 0);
  return static_cast<size_t>(sides * read.n_heads * read.n * head_dim);
}

}  // namespace

void PageQueue::begin(DevicePool* pool, uint64_t batch) {
  pool_ = pool;
  batch_ = batch;
  head_dim_ = 0;
  touched_.clear();
  zeros_.clear();
  for (Wave& wave : all_waves_) {
    wave.moves.clear();
    wave.writes.clear();
    wave.copies.clear();
    wave.encodes.clear();
    wave.reads.clear();
    wave.read_orders.clear();
    wave.figures.clear();
  }
  waves_ = 0;
  released_.clear();
  staging_.clear();
  result_floats_ = 0;
  figures_.clear();
}

void PageQueue::touch(const void* address, bool writes) {
  // Neighbors in a call mostly touch the same pages.
  const size_t n = touched_.size();
  for (size_t back = 1; back <= std::min<size_t>(n, 2); ++back) {
    if (touched_[n - back].writes == writes && touched_[n - back].page.holds(address)) return;
  }
  touched_.push_back({pool_->page_at(address), writes});
}

PageQueue::Wave& PageQueue::wave() {
  int32_t place = 0;
  for (const auto& [page, writes] : touched_) {
    DevicePool::Access& access = *page.access;
    if (access.batch != batch_) access = {batch_, -1, -1};
    place = std::max({place, access.written + 1, writes ? access.read + 1 : 0});
  }
  for (const auto& [page, writes] : touched_) {
    int32_t& last = writes ? page.access->written : page.access->read;
    last = std::max(last, place);
  }
  waves_ = std::max(waves_, static_cast<size_t>(place) + 1);
  if (all_waves_.size() < waves_) all_waves_.resize(waves_);
  return all_waves_[static_cast<size_t>(place)];
}

void PageQueue::zero(std::byte* page, size_t bytes) { zeros_.push_back({nullptr, page, bytes}); }

void PageQueue::move(int64_t head_dim, std::span<const TokenMove> moves) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const TokenMove& move : moves) {
    reads(move.from.k);
    writes(move.to.k);
  }
  Wave& to = wave();
  to.moves.insert(to.moves.end(), moves.begin(), moves.end());
}

void PageQueue::write_tokens(int64_t head_dim, std::span<const TokenWrite> tokens) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const TokenWrite& token : tokens) writes(token.to.k);
  Wave& to = wave();
  const size_t bytes = static_cast<size_t>(head_dim) * sizeof(float);
  for (const TokenWrite& token : tokens) {
    const size_t k = staging_.add(token.k, bytes), v = staging_.add(token.v, bytes);
    to.writes.push_back({reinterpret_cast<const float*>(k), reinterpret_cast<const float*>(v), token.to});
  }
}

void PageQueue::copy(std::span<const PageCopy> copies) {
  touched_.clear();  // A call that threw may have left pages.
  for (const PageCopy& copy : copies) {
    reads(copy.from);
    writes(copy.to);
  }
  Wave& to = wave();
  to.copies.insert(to.copies.end(), copies.begin(), copies.end());
}

void PageQueue::encode(int64_t head_dim, std::span<const PageEncode> pages) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const PageEncode& page : pages) {
    for (const TokenPlace& place : page.source.tokens) reads(place.k);
    if (page.source.codes != nullptr) reads(page.source.codes->k);
    if (page.source.residual != nullptr) reads(page.source.residual->k);
    writes(page.blocks);
    if (page.rows != nullptr) writes(page.rows);
  }
  Wave& to = wave();
  for (const PageEncode& page : pages) {
    const auto heads = static_cast<size_t>(page.n_heads);
    const size_t order_bytes = heads * static_cast<size_t>(head_dim), row_bytes = order_bytes * kPageTokens * sizeof(float);
    Encode job{page, {}, {}, kNone, kNone, kNone, kNone, kNone, kNone};
    if (page.source.codes != nullptr) {
      job.codes = *page.source.codes;
      job.codes_order = stage(job.codes.channel_order, order_bytes);
      if (page.source.residual != nullptr) {
        job.residual = *page.source.residual;
        job.residual_order = stage(job.residual.channel_order, order_bytes);
      }
    } else if (page.source.k != nullptr) {
      job.k = stage(page.source.k, row_bytes);
      job.v = stage(page.source.v, row_bytes);
    } else {
      job.tokens = stage(page.source.tokens.data(), page.source.tokens.size_bytes());
    }
    job.order = stage(page.channel_order, order_bytes);
    to.encodes.push_back(job);
  }
}

void PageQueue::read(int64_t head_dim, std::span<const PageRead> pages) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const PageRead& page : pages) reads(page.page.k);
  Wave& to = wave();
  for (const PageRead& page : pages) {
    to.reads.push_back(page);
    to.read_orders.push_back(stage(page.page.channel_order, static_cast<size_t>((page.head + page.n_heads) * head_dim)));
    result_floats_ += floats_of(page, head_dim);
  }
}

void PageQueue::score(int64_t n_kv_heads, int64_t head_dim, std::shared_ptr<const DeviceGate> gate,
                      std::span<const TokenScoring> layers) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const TokenScoring& layer : layers) {
    for (const KvSegment& page : layer.pages) reads(page.k);
  }
  wave().figures.score(n_kv_heads, head_dim, std::move(gate), layers, staging_, figures_);
}

void PageQueue::page_stats(int64_t head_dim, std::span<const PageStats> pages) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const PageStats& page : pages) reads(page.page.k);
  wave().figures.page_stats(head_dim, pages, figures_);
}

void PageQueue::multiply_keys(int64_t head_dim, std::span<const KeyProducts> products) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const KeyProducts& product : products) {
    reads(product.page.k);
    if (product.residual != nullptr) reads(product.residual->k);
  }
  wave().figures.multiply_keys(head_dim, products, staging_, figures_);
}

void PageQueue::touch_entries(const HeadEntries& entries) {
  for (const KvSegment& page : entries.codes) reads(page.k);
  for (const TokenPlace& place : entries.tokens) reads(place.k);
}

void PageQueue::summarize(int64_t head_dim, std::span<const EntrySummary> summaries) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const EntrySummary& summary : summaries) {
    touch_entries(summary.entries);
    for (const TokenPlace& place : summary.to) writes(place.k);
  }
  wave().figures.summarize(head_dim, summaries, staging_, figures_);
}

void PageQueue::entry_stats(int64_t head_dim, std::span<const EntryStats> entries) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
  for (const EntryStats& of : entries) touch_entries(of.entries);
  wave().figures.entry_stats(head_dim, entries, staging_, figures_);
}

void PageQueue::run(PageWorkspace& workspace, SummaryWorkspace& summaries, cudaStream_t stream) {
  if (!zeros_.empty()) copy_pages(zeros_, workspace, stream);
  if (waves_ == 0) return;
  std::byte* const staged = staging_.upload(stream);
  const size_t read_bytes = (result_floats_ * sizeof(float) + 255) / 256 * 256, bytes = read_bytes + figures_.bytes();
  std::byte* const all_results = device_results_.reserve(bytes);
  auto* const results = reinterpret_cast<float*>(all_results);
  float* next = results;
  for (size_t i = 0; i < waves_; ++i) {
    Wave& wave = all_waves_[i];
    if (!wave.copies.empty()) copy_pages(wave.copies, workspace, stream);
    if (!wave.moves.empty()) move_tokens(head_dim_, wave.moves, workspace, stream);
    if (!wave.writes.empty()) {
      token_writes_.clear();
      for (const TokenWrite& write : wave.writes) {
        token_writes_.push_back({staged_at<float>(staged, reinterpret_cast<size_t>(write.k)),
                                 staged_at<float>(staged, reinterpret_cast<size_t>(write.v)), write.to});
      }
      cuda::write_tokens(head_dim_, token_writes_, workspace, stream);
    }
    if (!wave.encodes.empty()) run_encodes(wave, staged, workspace, stream);
    if (!wave.reads.empty()) next = run_reads(wave, staged, next, workspace, stream);
    if (!wave.figures.empty()) wave.figures.launch(head_dim_, staged, all_results + read_bytes, workspace, summaries, stream);
  }
  if (bytes == 0) return;
  check(cudaMemcpyAsync(results_.reserve(bytes), results, bytes, cudaMemcpyDeviceToHost, stream), "copying from the device");
  check(cudaStreamSynchronize(stream), "waiting for the device");
  hand_out_results();
  figures_.hand_out(results_.data() + read_bytes);
}

void PageQueue::run_encodes(const Wave& wave, const std::byte* staged, PageWorkspace& workspace, cudaStream_t stream) {
  encodes_.clear();
  codes_.clear();
  codes_.reserve(wave.encodes.size());
  residuals_.clear();
  residuals_.reserve(wave.encodes.size());
  const auto order = [&](size_t offset) { return offset == kNone ? nullptr : staged_at<uint8_t>(staged, offset); };
  for (const Encode& from : wave.encodes) {
    PageEncode& page = encodes_.emplace_back(from.page);
    page.channel_order = order(from.order);
    if (page.source.codes != nullptr) {
      KvSegment& codes = codes_.emplace_back(from.codes);
      codes.channel_order = order(from.codes_order);
      page.source.codes = &codes;
      if (page.source.residual != nullptr) {
        KvSegment& residual = residuals_.emplace_back(from.residual);
        residual.channel_order = order(from.residual_order);
        page.source.residual = &residual;
      }
    } else if (page.source.k != nullptr) {
      page.source.k = staged_at<float>(staged, from.k);
      page.source.v = staged_at<float>(staged, from.v);
    } else {
      page.source.tokens = {staged_at<TokenPlace>(staged, from.tokens), from.page.source.tokens.size()};
    }
  }
  encode_pages(head_dim_, encodes_, workspace, stream);
}

float* PageQueue::run_reads(const Wave& wave, const std::byte* staged, float* results, PageWorkspace& workspace,
                            cudaStream_t stream) {
  reads_.clear();
  for (size_t i = 0; i < wave.reads.size(); ++i) {
    PageRead& read = reads_.emplace_back(wave.reads[i]);
    if (wave.read_orders[i] != kNone) read.page.channel_order = staged_at<uint8_t>(staged, wave.read_orders[i]);
    read.head_stride = read.n * head_dim_;
    for (float** side : {&read.k, &read.v}) {
      if (*side == nullptr) continue;
      *side = results;
      results += read.n_heads * read.head_stride;
    }
  }
  read_pages(head_dim_, reads_, workspace, stream);
  return results;
}

void PageQueue::hand_out_results() const {
  const auto* from = reinterpret_cast<const float*>(results_.data());
  for (size_t i = 0; i < waves_; ++i) {
    for (const PageRead& read : all_waves_[i].reads) {
      for (float* const side : {read.k, read.v}) {
        if (side == nullptr) continue;
        for (int64_t head = 0; head < read.n_heads; ++head, from += read.n * head_dim_) {
          std::copy_n(from, read.n * head_dim_, side + head * read.head_stride);
        }
      }
    }
  }
}

}  // namespace smartkv::kernels::cuda

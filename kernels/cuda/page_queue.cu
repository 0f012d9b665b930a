#include "kernels/cuda/page_queue.h"

#include <algorithm>

#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

void PageQueue::begin(DevicePool* pool, uint64_t batch) {
  pool_ = pool;
  batch_ = batch;
  head_dim_ = 0;
  touched_.clear();
  zeros_.clear();
  for (Wave& wave : all_waves_) {
    wave.moves.clear();
    wave.copies.clear();
    wave.encodes.clear();
    for (const auto& kind : wave.kinds) kind->clear();
  }
  waves_ = 0;
  released_.clear();
  staging_.clear();
  result_space_.clear();
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

void PageQueue::start(int64_t head_dim) {
  touched_.clear();  // A call that threw may have left pages.
  head_dim_ = head_dim;
}

void PageQueue::move(std::span<const TokenMove> moves) {
  for (const TokenMove& move : moves) {
    reads(move.from.k);
    writes(move.to.k);
  }
  Wave& to = wave();
  to.moves.insert(to.moves.end(), moves.begin(), moves.end());
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

void PageQueue::encode(std::span<const PageEncode> pages) {
  for (const PageEncode& page : pages) {
    for (const TokenPlace& place : page.source.tokens) reads(place.k);
    if (page.source.quantized != nullptr) reads(page.source.quantized->k);
    if (page.source.residual != nullptr) reads(page.source.residual->k);
    writes(page.blocks);
    if (page.rows != nullptr) writes(page.rows);
  }
  Wave& to = wave();
  for (const PageEncode& page : pages) {
    const auto order_bytes = static_cast<size_t>(page.n_heads * head_dim_);
    Encode job{page, {}, {}, kNone, kNone, kNone, kNone, kNone};
    if (page.source.quantized != nullptr) {
      job.quantized = *page.source.quantized;
      job.quantized_order = stage(job.quantized.channel_order, order_bytes);
      if (page.source.residual != nullptr) {
        job.residual = *page.source.residual;
        job.residual_order = stage(job.residual.channel_order, order_bytes);
      }
    } else {
      job.tokens = stage(page.source.tokens.data(), page.source.tokens.size_bytes());
    }
    job.order = stage(page.channel_order, order_bytes);
    job.wide = stage(page.wide, static_cast<size_t>(page.n_heads) * sizeof(uint64_t));
    to.encodes.push_back(job);
  }
}

void PageQueue::run(PageWorkspace& workspace, cudaStream_t stream) {
  if (!zeros_.empty()) copy_pages(zeros_, workspace, stream);
  if (waves_ == 0) return;
  const size_t bytes = result_space_.bytes();
  const WaveMemory memory{staging_.upload(stream), device_results_.reserve(bytes)};
  for (size_t i = 0; i < waves_; ++i) {
    const Wave& wave = all_waves_[i];
    if (!wave.copies.empty()) copy_pages(wave.copies, workspace, stream);
    if (!wave.moves.empty()) move_tokens(head_dim_, wave.moves, workspace, stream);
    if (!wave.encodes.empty()) run_encodes(wave, memory, workspace, stream);
    for (const auto& kind : wave.kinds) kind->run(head_dim_, memory, workspace, stream);
  }
  if (bytes == 0) return;
  std::byte* const to = results_.reserve(bytes);
  check(cudaMemcpyAsync(to, memory.results, bytes, cudaMemcpyDeviceToHost, stream), "copying from the device");
  check(cudaStreamSynchronize(stream), "waiting for the device");
  result_space_.hand_out(to);
}

void PageQueue::run_encodes(const Wave& wave, const WaveMemory& memory, PageWorkspace& workspace, cudaStream_t stream) {
  encodes_.clear();
  quantized_.clear();
  quantized_.reserve(wave.encodes.size());
  residuals_.clear();
  residuals_.reserve(wave.encodes.size());
  for (const Encode& from : wave.encodes) {
    PageEncode& page = encodes_.emplace_back(from.page);
    page.channel_order = memory.input<uint8_t>(from.order);
    page.wide = memory.input<uint64_t>(from.wide);
    if (page.source.quantized != nullptr) {
      KvSegment& quantized = quantized_.emplace_back(from.quantized);
      quantized.channel_order = memory.input<uint8_t>(from.quantized_order);
      page.source.quantized = &quantized;
      if (page.source.residual != nullptr) {
        KvSegment& residual = residuals_.emplace_back(from.residual);
        residual.channel_order = memory.input<uint8_t>(from.residual_order);
        page.source.residual = &residual;
      }
    } else {
      page.source.tokens = {memory.input<TokenPlace>(from.tokens), from.page.source.tokens.size()};
    }
  }
  encode_pages(head_dim_, encodes_, workspace, stream);
}

}  // namespace smartkv::kernels::cuda

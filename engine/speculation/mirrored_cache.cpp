#include "engine/speculation/mirrored_cache.h"

namespace smartkv {

int64_t room_to_boundary(const SequenceCache& draft) {
  const int64_t at = draft.tokens(), room = draft.next_boundary() - at;
  if (room <= 0) {
    throw CacheError("draft cache: the compaction boundary at token " + std::to_string(at) + " did not advance");
  }
  return room;
}

void MirroredCache::reserve(int64_t n) {
  target_->reserve(n);
  keeps_ = draft_->tokens() + n > draft_->next_boundary();
  if (!keeps_) return draft_->reserve(n);
  for (auto& layer : kept_)
    layer = std::make_unique<kernels::PageMemory>(backend_, static_cast<size_t>(n * 2 * width_) * sizeof(float));
}

void MirroredCache::write(int64_t layer, const KvRows& rows) {
  target_->write(layer, rows);
  if (!keeps_) return draft_->write(layer, rows);
  const size_t bytes = static_cast<size_t>(width_) * sizeof(float);
  std::byte* kept = kept_[static_cast<size_t>(layer)]->data() + static_cast<size_t>(rows.first) * 2 * bytes;
  std::vector<kernels::PageCopy> copies;
  for (int64_t i = 0; i < rows.n; ++i) {
    for (const float* const row : {rows.k + i * rows.stride, rows.v + i * rows.stride}) {
      copies.push_back({row, kept, bytes});
      kept += bytes;
    }
  }
  if (backend_->holds(rows.k)) return backend_->copy(copies);
  for (const auto& [from, to, size] : copies) backend_->upload(from, size, static_cast<std::byte*>(to));
}

void MirroredCache::advance(int64_t n) {
  target_->advance(n);
  if (!keeps_) draft_->advance(n);
}

void MirroredCache::truncate(int64_t n_tokens) {
  target_->truncate(n_tokens);
  if (draft_->tokens() > n_tokens) draft_->truncate(n_tokens);
}

void MirroredCache::commit(int64_t n_tokens) {
  if (keeps_ && n_tokens != tokens()) {
    throw CacheError("mirrored cache: expected a commit of all " + std::to_string(tokens()) + " tokens, found " +
                     std::to_string(n_tokens));
  }
  target_->commit(n_tokens);
  if (keeps_) return write_kept();
  draft_->commit(n_tokens);
}

void MirroredCache::write_kept() {
  const int64_t first = draft_->tokens(), n_tokens = tokens();
  for (int64_t at = first; at < n_tokens; at = draft_->tokens()) {
    const int64_t n = std::min(n_tokens - at, room_to_boundary(*draft_));
    draft_->reserve(n);
    for (size_t layer = 0; layer < kept_.size(); ++layer) {
      const float* const k = reinterpret_cast<const float*>(kept_[layer]->data()) + (at - first) * 2 * width_;
      draft_->write(static_cast<int64_t>(layer), {k, k + width_, 2 * width_, 0, n});
    }
    backend_->apply_writes();
    draft_->advance(n);
    draft_->commit(at + n);
  }
  keeps_ = false;
  for (auto& layer : kept_) layer.reset();
}

}  // namespace smartkv

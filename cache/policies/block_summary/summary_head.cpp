#include "cache/policies/block_summary/summary_head.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace smartkv {

using kernels::kPageTokens;

int64_t n_pages(const LevelPages& pages) {
  size_t n = 0;
  for (const auto& level : pages) n += level.size();
  return static_cast<int64_t>(n);
}

int64_t SummaryHead::entries() const {
  size_t n = sinks.size() + outliers.size() + pending.size();
  for (const auto& level : levels) n += level.size();
  return static_cast<int64_t>(n);
}

int64_t SummaryHead::tokens() const {
  int64_t tokens = static_cast<int64_t>(sinks.size() + outliers.size() + pending.size());
  for (const auto& level : levels) {
    for (const SummaryEntry& entry : level) tokens += entry.tokens;
  }
  return tokens;
}

void SummaryHead::for_each(const std::function<void(SummaryEntry&)>& visit) {
  std::for_each(sinks.begin(), sinks.end(), visit);
  std::for_each(outliers.begin(), outliers.end(), visit);
  for (auto& level : levels) std::for_each(level.begin(), level.end(), visit);
  std::for_each(pending.begin(), pending.end(), visit);
}

void SummaryHead::for_each(const std::function<void(const SummaryEntry&)>& visit) const {
  std::for_each(sinks.begin(), sinks.end(), visit);
  std::for_each(outliers.begin(), outliers.end(), visit);
  for (const auto& level : levels) std::for_each(level.begin(), level.end(), visit);
  std::for_each(pending.begin(), pending.end(), visit);
}

namespace {

void save_entries(const std::vector<SummaryEntry>& entries, StateWriter* out) {
  out->value(static_cast<int64_t>(entries.size()));
  for (const SummaryEntry& entry : entries) {
    for (const int32_t value : {entry.position, entry.tokens, entry.retained_until, entry.place}) out->value(value);
    for (const float value : {entry.bias, entry.score, entry.retention}) out->value(value);
  }
}

void load_entries(StateReader* in, std::vector<SummaryEntry>* entries) {
  const auto n = in->value<int64_t>();
  in->expect(n >= 0 && n <= in->left(), "a count of entries");
  entries->resize(static_cast<size_t>(n));
  for (SummaryEntry& entry : *entries) {
    for (int32_t* value : {&entry.position, &entry.tokens, &entry.retained_until, &entry.place}) *value = in->value<int32_t>();
    for (float* value : {&entry.bias, &entry.score, &entry.retention}) *value = in->value<float>();
  }
}

}  // namespace

void SummaryHead::save(StateWriter* out) const {
  for (const auto* list : {&sinks, &outliers, &pending}) save_entries(*list, out);
  out->value(static_cast<int64_t>(levels.size()));
  for (const auto& level : levels) save_entries(level, out);
}

void SummaryHead::load(int64_t end, const LevelPages& codes, StateReader* in) {
  for (auto* list : {&sinks, &outliers, &pending}) load_entries(in, list);
  const auto n = in->value<int64_t>();
  in->expect(n >= static_cast<int64_t>(codes.size()) && n <= in->left(), "a count of levels");
  levels.resize(static_cast<size_t>(n));
  for (auto& level : levels) load_entries(in, &level);
  for (size_t level = 0; level < codes.size(); ++level) {
    const size_t coded = codes[level].size() * kPageTokens;
    in->expect(coded <= levels[level].size(), "entries for a level's pages of codes");
    for (size_t i = 0; i < coded; ++i) in->expect(levels[level][i].place == SummaryEntry::kInCodes, "an entry in codes");
  }
  const int64_t dense = entries() - n_pages(codes) * kPageTokens;
  std::vector<bool> taken(static_cast<size_t>(dense), false);
  int64_t found = 0;
  for_each([&](const SummaryEntry& entry) {
    in->expect(entry.position >= 0 && entry.position < end && entry.tokens > 0, "a position and a count of tokens");
    in->expect(std::isfinite(entry.bias), "a finite bias");
    if (entry.place == SummaryEntry::kInCodes) return;
    in->expect(entry.place >= 0 && entry.place < dense && !taken[static_cast<size_t>(entry.place)], "a place of its own");
    taken[static_cast<size_t>(entry.place)] = true;
    ++found;
  });
  in->expect(found == dense, "a place of each entry");
}

struct HeadCompaction::Block {
  std::vector<SummaryEntry> entries;
  std::vector<float> k, v, bias, attention;
  EntryBlock view;
};

HeadCompaction::HeadCompaction(const SummaryOptions& options, const Pages& pages, int64_t head, const SampledQueries& queries,
                               SummaryHead* entries)
    : options_(options),
      pages_(pages),
      dim_(pages.shape.head_dim),
      head_(head),
      queries_(queries),
      entries_(entries),
      used_pages_(pages.codes.size(), 0) {}

void HeadCompaction::add(int32_t position, const float* k, const float* v, float score) {
  const auto row = static_cast<int32_t>(static_cast<int64_t>(rows_.size()) / (2 * dim_));
  rows_.insert(rows_.end(), k, k + dim_);
  rows_.insert(rows_.end(), v, v + dim_);
  const SummaryEntry entry{position, 1, 0, score, 0, 0, -1 - row};
  (position < options_.sinks ? entries_->sinks : entries_->pending).push_back(entry);
}

void HeadCompaction::read(std::span<const SummaryEntry> entries, float* k, float* v) const {
  std::vector<kernels::PageRead> jobs;
  for (const SummaryEntry& entry : entries) {
    if (entry.place >= 0) {
      jobs.push_back(read_of(pages_.kept.place(entry.place, head_), k, v));
    } else if (entry.place != SummaryEntry::kInCodes) {
      std::copy_n(row_of(entry), dim_, k);
      std::copy_n(row_of(entry) + dim_, dim_, v);
    }
    k += dim_;
    v += dim_;
  }
  pages_.backend.read(pages_.shape.type, dim_, jobs);
}

void HeadCompaction::complete(bool with_attention, Block* block) const {
  for (const SummaryEntry& entry : block->entries) block->bias.push_back(entry.bias);
  block->view = {static_cast<int64_t>(block->entries.size()), dim_, block->k.data(), block->v.data(), block->bias.data()};
  if (with_attention && options_.needs_queries()) block->attention = attention_matrix(block->view, queries_);
}

HeadCompaction::Block HeadCompaction::load(std::span<const SummaryEntry> entries, bool with_attention) const {
  Block block;
  block.entries.assign(entries.begin(), entries.end());
  block.k.resize(entries.size() * static_cast<size_t>(dim_));
  block.v.resize(block.k.size());
  read(entries, block.k.data(), block.v.data());
  pages_.backend.finish();
  complete(with_attention, &block);
  return block;
}

// Whole pages of codes first, as groups are whole pages or all that a level has.
HeadCompaction::Block HeadCompaction::load_oldest(size_t level, int64_t n) {
  const std::span<const SummaryEntry> entries = std::span(entries_->levels[level]).first(static_cast<size_t>(n));
  if (entries[0].place != SummaryEntry::kInCodes) return load(entries, true);
  Block block;
  block.entries.assign(entries.begin(), entries.end());
  block.k.resize(entries.size() * static_cast<size_t>(dim_));
  block.v.resize(block.k.size());
  for (int64_t i = 0; i < n && entries[static_cast<size_t>(i)].place == SummaryEntry::kInCodes; i += kPageTokens) {
    pages_.codes[level][used_pages_[level]++]->read(pages_.shape, head_, 1, block.k.data() + i * dim_, block.v.data() + i * dim_);
  }
  read(entries, block.k.data(), block.v.data());
  pages_.backend.finish();
  complete(true, &block);
  return block;
}

// Moves the block's `salient` tokens of highest salience to the outliers; `rest`: the others.
void HeadCompaction::choose_outliers(Block* block, int64_t salient, std::vector<SummaryEntry>* rest) {
  const auto n = block->entries.size();
  if (options_.salience == Salience::kNovelty) {
    const SummaryRule rule{PivotRule::kCosine, ValueRule::kMean, BiasRule::kNone};
    const BlockSummary summary = summarize(rule, block->view, {}, options_.summaries);
    const std::vector<float> distance = novelty(block->view, summary.pivots);
    for (size_t i = 0; i < n; ++i) block->entries[i].score = distance[i];
  } else if (options_.salience == Salience::kValueNorm) {
    for (size_t i = 0; i < n; ++i) {
      const float* v = block->v.data() + static_cast<int64_t>(i) * dim_;
      block->entries[i].score = std::sqrt(std::inner_product(v, v + dim_, v, 0.0f));
    }
  } else if (options_.salience == Salience::kAttention) {
    for (size_t i = 0; i < n; ++i) block->entries[i].score = 0;
    for (size_t i = 0; i < block->attention.size(); ++i) block->entries[i % n].score += block->attention[i];
  }
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + salient, order.end(), [&](size_t a, size_t b) {
    const float score_a = block->entries[a].score, score_b = block->entries[b].score;
    return score_a != score_b ? score_a > score_b : a < b;
  });
  std::sort(order.begin(), order.begin() + salient);
  std::sort(order.begin() + salient, order.end());
  for (std::ptrdiff_t i = 0; i < salient; ++i) entries_->outliers.push_back(block->entries[order[static_cast<size_t>(i)]]);
  for (size_t i = static_cast<size_t>(salient); i < n; ++i) rest->push_back(block->entries[order[i]]);
}

void HeadCompaction::add_summaries(const Block& block, int64_t most, size_t level) {
  const BlockSummary summary = summarize(options_.rule, block.view, block.attention, most);
  if (entries_->levels.size() <= level) entries_->levels.resize(level + 1);
  const size_t count = summary.pivots.size();
  std::vector<SummaryEntry> made(count);
  for (size_t i = 0; i < count; ++i) {
    const auto pivot = static_cast<size_t>(summary.pivots[i]);
    made[i] = {block.entries[pivot].position, 0, summary.bias[i], 0, 0, 0,
               -1 - static_cast<int32_t>(static_cast<int64_t>(rows_.size()) / (2 * dim_))};
    const float* k = block.k.data() + static_cast<int64_t>(pivot) * dim_;
    const float* v = summary.v.data() + static_cast<int64_t>(i) * dim_;
    rows_.insert(rows_.end(), k, k + dim_);
    rows_.insert(rows_.end(), v, v + dim_);
  }
  for (size_t i = 0; i < block.entries.size(); ++i) {
    SummaryEntry& of = made[static_cast<size_t>(summary.group[i])];
    of.tokens += block.entries[i].tokens;
    of.retention = std::max(of.retention, block.entries[i].retention);
    of.retained_until = std::max(of.retained_until, block.entries[i].retained_until);
  }
  std::vector<SummaryEntry>& to = entries_->levels[level];
  to.insert(to.end(), made.begin(), made.end());
}

void HeadCompaction::summarize_block(int64_t salient) {
  std::vector<SummaryEntry>& pending = entries_->pending;
  const bool chooses = salient > 0;
  Block block = load(std::span(pending).first(static_cast<size_t>(options_.block)),
                     !chooses || options_.salience == Salience::kAttention);
  pending.erase(pending.begin(), pending.begin() + options_.block);
  if (!chooses) return add_summaries(block, options_.summaries, 0);
  std::vector<SummaryEntry> rest;
  choose_outliers(&block, salient, &rest);
  add_summaries(load(rest, true), options_.summaries, 0);
}

// The outliers of least score become entries of the finest level.
void HeadCompaction::demote(int64_t n) {
  std::vector<SummaryEntry>& outliers = entries_->outliers;
  n = std::min(n, static_cast<int64_t>(outliers.size()));
  if (n <= 0) return;
  std::vector<size_t> order(outliers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](size_t a, size_t b) {
    return outliers[a].score != outliers[b].score ? outliers[a].score < outliers[b].score : a < b;
  });
  std::sort(order.begin(), order.begin() + n);
  if (entries_->levels.empty()) entries_->levels.emplace_back();
  std::vector<SummaryEntry> stay;
  size_t next = 0;
  for (size_t i = 0; i < outliers.size(); ++i) {
    const bool goes = next < static_cast<size_t>(n) && order[next] == i;
    if (goes) ++next;
    (goes ? entries_->levels[0] : stay).push_back(outliers[i]);
  }
  outliers = std::move(stay);
}

void HeadCompaction::consolidate(size_t level, int64_t n) {
  const Block block = load_oldest(level, n);
  add_summaries(block, (n + options_.ratio - 1) / options_.ratio, level + 1);  // may move levels
  std::vector<SummaryEntry>& from = entries_->levels[level];
  from.erase(from.begin(), from.begin() + n);
}

// The level to consolidate when there are too many entries in all: the largest, of equals the finest. It has two entries at
// least, if need be because finer levels join it.
size_t HeadCompaction::largest_level() {
  auto& levels = entries_->levels;
  size_t largest = 0;
  for (size_t i = 1; i < levels.size(); ++i) largest = levels[i].size() > levels[largest].size() ? i : largest;
  while (levels[largest].size() < 2) {
    const auto finest = std::find_if(levels.begin(), levels.end(), [](const auto& level) { return !level.empty(); });
    largest = static_cast<size_t>(finest - levels.begin()) + 1;
    levels[largest].insert(levels[largest].end(), finest->begin(), finest->end());
    finest->clear();
  }
  return largest;
}

SummaryWork HeadCompaction::compact(int64_t now, int64_t shed, int64_t salient) {
  SummaryWork work;
  for (SummaryEntry& entry : entries_->outliers) {
    if (entry.retained_until <= now) entry.retention = 0;
    entry.score *= static_cast<float>(1 - options_.decay * (1 - static_cast<double>(entry.retention)));
  }
  demote(shed);
  while (static_cast<int64_t>(entries_->pending.size()) >= options_.block) {
    summarize_block(salient);
    demote(static_cast<int64_t>(entries_->outliers.size()) - options_.outliers);
  }
  for (size_t level = 0; level < entries_->levels.size(); ++level) {
    for (; static_cast<int64_t>(entries_->levels[level].size()) > options_.level; ++work.consolidations) {
      consolidate(level, options_.group());
    }
  }
  while (options_.capacity > 0 && entries_->entries() > options_.capacity) {
    const size_t level = largest_level();
    consolidate(level, std::min(options_.group(), static_cast<int64_t>(entries_->levels[level].size())));
    ++work.consolidations;
    ++work.watermark_hits;
  }
  for (auto* list : {&entries_->outliers, &entries_->pending}) list->shrink_to_fit();  // what a prompt's end needed
  for (auto& list : entries_->levels) list.shrink_to_fit();
  return work;
}

void HeadCompaction::take_page(size_t level, size_t first, float* k, float* v) {
  const std::span<SummaryEntry> entries = std::span(entries_->levels[level]).subspan(first, kPageTokens);
  read(entries, k, v);
  for (SummaryEntry& entry : entries) entry.place = SummaryEntry::kInCodes;
}

std::vector<HeadCompaction::Write> HeadCompaction::settle() {
  int64_t total = 0;
  entries_->for_each([&](const SummaryEntry& entry) { total += entry.place == SummaryEntry::kInCodes ? 0 : 1; });
  std::vector<bool> taken(static_cast<size_t>(total), false);
  const auto stays = [&](const SummaryEntry& entry) {
    return entry.place == SummaryEntry::kInCodes || (entry.place >= 0 && entry.place < total);
  };
  entries_->for_each([&](const SummaryEntry& entry) {
    if (entry.place >= 0 && entry.place < total) taken[static_cast<size_t>(entry.place)] = true;
  });
  std::vector<Write> writes;
  size_t free = 0;
  entries_->for_each([&](SummaryEntry& entry) {
    if (stays(entry)) return;
    while (taken[free]) ++free;
    const bool has_slot = entry.place >= 0;  // which goes away
    writes.push_back({static_cast<int64_t>(free), has_slot ? nullptr : row_of(entry), has_slot ? entry.place : -1});
    entry.place = static_cast<int32_t>(free++);
  });
  return writes;
}

}  // namespace smartkv

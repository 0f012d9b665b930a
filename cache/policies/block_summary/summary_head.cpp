#include "cache/policies/block_summary/summary_head.h"

#include <cmath>
#include <numeric>

#include "kernels/pending_results.h"

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

namespace {

void save_entries(const std::vector<SummaryEntry>& entries, StateWriter* out) {
  out->value(static_cast<int64_t>(entries.size()));
  for (const SummaryEntry& entry : entries) {
    out->fields(entry.position, entry.tokens, entry.retained_until, entry.place);
    out->fields(entry.bias, entry.score, entry.retention);
  }
}

void load_entries(StateReader* in, std::vector<SummaryEntry>* entries) {
  const auto n = in->value<int64_t>();
  in->expect(n >= 0 && n <= in->left(), "a count of entries");
  entries->resize(static_cast<size_t>(n));
  for (SummaryEntry& entry : *entries) {
    in->fields(entry.position, entry.tokens, entry.retained_until, entry.place);
    in->fields(entry.bias, entry.score, entry.retention);
  }
}

}  // namespace

void SummaryHead::save(StateWriter* out) const {
  for (const auto* list : {&sinks, &outliers, &pending}) save_entries(*list, out);
  out->value(static_cast<int64_t>(levels.size()));
  for (const auto& level : levels) save_entries(level, out);
}

void SummaryHead::load(int64_t end, const LevelPages& quantized, StateReader* in) {
  for (auto* list : {&sinks, &outliers, &pending}) load_entries(in, list);
  const auto n = in->value<int64_t>();
  in->expect(n >= static_cast<int64_t>(quantized.size()) && n <= in->left(), "a count of levels");
  levels.resize(static_cast<size_t>(n));
  for (auto& level : levels) load_entries(in, &level);
  for (size_t level = 0; level < quantized.size(); ++level) {
    const size_t coded = quantized[level].size() * kPageTokens;
    in->expect(coded <= levels[level].size(), "entries for a level's quantized pages");
    for (size_t i = 0; i < coded; ++i) {
      in->expect(levels[level][i].place == SummaryEntry::kInQuantized, "an entry in a quantized page");
    }
  }
  const int64_t dense = entries() - n_pages(quantized) * kPageTokens;
  std::vector<bool> taken(static_cast<size_t>(dense), false);
  int64_t found = 0;
  for_each([&](const SummaryEntry& entry) {
    in->expect(entry.position >= 0 && entry.position < end && entry.tokens > 0, "a position and a count of tokens");
    in->expect(std::isfinite(entry.bias), "a finite bias");
    if (entry.place == SummaryEntry::kInQuantized) return;
    in->expect(entry.place >= 0 && entry.place < dense && !taken[static_cast<size_t>(entry.place)],
               "a place that no other entry has");
    taken[static_cast<size_t>(entry.place)] = true;
    ++found;
  });
  in->expect(found == dense, "an entry for each place");
}

HeadCompaction::HeadCompaction(const SummaryOptions& options, const Pages& pages, int64_t head,
                               const SampledQueries& queries, SummaryHead* entries)
    : options_(options),
      pages_(pages),
      dim_(pages.shape.head_dim),
      head_(head),
      queries_(queries),
      entries_(entries),
      used_pages_(pages.quantized.size(), 0),
      memory_(pages.backend, dim_) {}

void HeadCompaction::add(int32_t position, const kernels::TokenPlace& from, float score) {
  elsewhere_.push_back(from);
  const SummaryEntry entry{position, 1, 0, score, 0, 0, -static_cast<int32_t>(elsewhere_.size())};
  (position < options_.sinks ? entries_->sinks : entries_->pending).push_back(entry);
}

kernels::TokenPlace HeadCompaction::place_of(const SummaryEntry& entry) const {
  return entry.place >= 0 ? pages_.kept.place(entry.place, head_) : elsewhere_[static_cast<size_t>(-1 - entry.place)];
}

HeadEntries HeadCompaction::entries_of(const Block& block, bool with_queries) const {
  return {block.quantized, head_, block.tokens, block.bias, with_queries ? &queries_ : nullptr};
}

// Quantized pages come first and whole, because a group is either whole pages or all that a level has.
void HeadCompaction::load(std::vector<SummaryEntry> entries, size_t pages_level) {
  block_ = {};
  size_t i = 0;
  for (; i < entries.size() && entries[i].place == SummaryEntry::kInQuantized; i += kPageTokens) {
    block_.quantized.push_back(pages_.quantized[pages_level][used_pages_[pages_level]++]->segment());
  }
  for (; i < entries.size(); ++i) block_.tokens.push_back(place_of(entries[i]));
  for (const SummaryEntry& entry : entries) block_.bias.push_back(entry.bias);
  block_.entries = std::move(entries);
}

// Adds the job that tells which tokens of the block stand out.
void HeadCompaction::choose(Jobs* jobs) {
  block_.chooses = true;
  block_.scores.resize(block_.entries.size());
  const bool by_attention = options_.salience == Salience::kAttention;
  const EntryStat stat = by_attention                              ? EntryStat::kAttention
                         : options_.salience == Salience::kNovelty ? EntryStat::kNovelty
                                                                   : EntryStat::kValueNorm;
  jobs->stats.push_back({entries_of(block_, by_attention), stat, options_.summaries, block_.scores.data()});
}

// Moves the tokens of highest salience from the block to the outliers, and weak outliers to the block.
void HeadCompaction::take_outliers() {
  std::vector<SummaryEntry>& entries = block_.entries;
  const size_t n = entries.size();
  const std::vector<SummaryEntry> shed = take_shed();
  const int64_t salient = salient_ + static_cast<int64_t>(shed.size()) - std::exchange(shed_, 0);
  for (size_t i = 0; i < block_.scores.size(); ++i) entries[i].score = block_.scores[i];
  std::vector<size_t> order(n);
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + salient, order.end(), [&](size_t a, size_t b) {
    const float score_a = entries[a].score, score_b = entries[b].score;
    return score_a != score_b ? score_a > score_b : a < b;
  });
  std::sort(order.begin(), order.begin() + salient);
  std::sort(order.begin() + salient, order.end());
  for (std::ptrdiff_t i = 0; i < salient; ++i) entries_->outliers.push_back(entries[order[static_cast<size_t>(i)]]);
  std::vector<SummaryEntry> rest;
  for (size_t i = static_cast<size_t>(salient); i < n; ++i) rest.push_back(entries[order[i]]);
  rest.insert(rest.end(), shed.begin(), shed.end());
  load(std::move(rest), 0);
}

void HeadCompaction::summarize(int64_t most, size_t level, Jobs* jobs) {
  const size_t n = block_.entries.size(), count = std::min(static_cast<size_t>(most), n);
  block_.level = level;
  block_.pivots.resize(count);
  block_.summary_bias.resize(count);
  block_.group.resize(n);
  for (size_t i = 0; i < count; ++i) block_.rows.push_back(memory_.add());
  jobs->summaries.push_back({entries_of(block_, options_.needs_queries()), options_.rule, block_.rows,
                             block_.pivots.data(), block_.group.data(), block_.summary_bias.data()});
}

void HeadCompaction::add_summaries() {
  const size_t count = block_.pivots.size();
  if (entries_->levels.size() <= block_.level) entries_->levels.resize(block_.level + 1);
  std::vector<SummaryEntry> made(count);
  for (size_t i = 0; i < count; ++i) {
    elsewhere_.push_back(block_.rows[i]);
    made[i] = {block_.entries[static_cast<size_t>(block_.pivots[i])].position,
               0,
               block_.summary_bias[i],
               0,
               0,
               0,
               -static_cast<int32_t>(elsewhere_.size())};
  }
  for (size_t i = 0; i < block_.entries.size(); ++i) {
    SummaryEntry& of = made[static_cast<size_t>(block_.group[i])];
    of.tokens += block_.entries[i].tokens;
    of.retention = std::max(of.retention, block_.entries[i].retention);
    of.retained_until = std::max(of.retained_until, block_.entries[i].retained_until);
  }
  std::vector<SummaryEntry>& to = entries_->levels[block_.level];
  to.insert(to.end(), made.begin(), made.end());
}

std::vector<SummaryEntry> HeadCompaction::take_weakest(int64_t n) {
  std::vector<SummaryEntry>& outliers = entries_->outliers;
  n = std::min(n, static_cast<int64_t>(outliers.size()));
  if (n <= 0) return {};
  std::vector<size_t> order(outliers.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::partial_sort(order.begin(), order.begin() + n, order.end(), [&](size_t a, size_t b) {
    return outliers[a].score != outliers[b].score ? outliers[a].score < outliers[b].score : a < b;
  });
  std::sort(order.begin(), order.begin() + n);
  std::vector<SummaryEntry> taken, stay;
  size_t next = 0;
  for (size_t i = 0; i < outliers.size(); ++i) {
    const bool goes = next < static_cast<size_t>(n) && order[next] == i;
    if (goes) ++next;
    (goes ? taken : stay).push_back(outliers[i]);
  }
  outliers = std::move(stay);
  return taken;
}

// Removes the outliers below the least score, the weakest first, as many as the block has tokens to replace them.
std::vector<SummaryEntry> HeadCompaction::take_shed() {
  if (!std::exchange(sheds_, false)) return {};
  const std::vector<SummaryEntry>& outliers = entries_->outliers;
  const auto weak = std::count_if(outliers.begin(), outliers.end(), [&](const SummaryEntry& e) {
    return e.score < static_cast<float>(options_.least_score);
  });
  return take_weakest(std::min<int64_t>(weak, options_.block - salient_ + shed_));
}

// Moves the n outliers of least score to the finest level.
void HeadCompaction::demote(int64_t n) {
  const std::vector<SummaryEntry> taken = take_weakest(n);
  if (taken.empty()) return;
  if (entries_->levels.empty()) entries_->levels.emplace_back();
  entries_->levels[0].insert(entries_->levels[0].end(), taken.begin(), taken.end());
}

void HeadCompaction::consolidate(size_t level, int64_t n, Jobs* jobs) {
  std::vector<SummaryEntry>& from = entries_->levels[level];
  load({from.begin(), from.begin() + n}, level);
  from.erase(from.begin(), from.begin() + n);
  summarize((n + options_.ratio - 1) / options_.ratio, level + 1, jobs);
  ++work_.consolidations;
}

// Returns the level to consolidate if there are too many entries in total: the largest; of equals, the finest. It has
// at least two entries. If no level has two, the finest ones are joined with the next.
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

void HeadCompaction::begin(int64_t now, int64_t shed, int64_t salient) {
  salient_ = salient;
  shed_ = std::min(shed, salient);
  sheds_ = options_.sheds();
  for (SummaryEntry& entry : entries_->outliers) {
    if (entry.retained_until <= now) entry.retention = 0;
    entry.score *= static_cast<float>(1 - options_.decay * (1 - static_cast<double>(entry.retention)));
  }
}

bool HeadCompaction::step(Jobs* jobs) {
  if (block_.chooses) {
    take_outliers();
    summarize(options_.summaries, 0, jobs);
    return true;
  }
  std::vector<SummaryEntry>& pending = entries_->pending;
  is_block_ = static_cast<int64_t>(pending.size()) >= options_.block;
  if (is_block_) {
    load({pending.begin(), pending.begin() + options_.block}, 0);
    pending.erase(pending.begin(), pending.begin() + options_.block);
    if (salient_ > 0 && options_.salience != Salience::kGate) {
      choose(jobs);
      return true;
    }
    if (salient_ > 0) take_outliers();  // The scores came with the tokens.
    summarize(options_.summaries, 0, jobs);
    return true;
  }
  for (size_t level = 0; level < entries_->levels.size(); ++level) {
    if (static_cast<int64_t>(entries_->levels[level].size()) <= options_.level) continue;
    consolidate(level, options_.group(), jobs);
    return true;
  }
  if (options_.capacity == 0 || entries_->entries() <= options_.capacity) return false;
  const size_t level = largest_level();
  consolidate(level, std::min(options_.group(), static_cast<int64_t>(entries_->levels[level].size())), jobs);
  ++work_.watermark_hits;
  return true;
}

void HeadCompaction::absorb() {
  if (block_.chooses) return;  // The results are for the next step.
  add_summaries();
  if (is_block_) demote(static_cast<int64_t>(entries_->outliers.size()) - options_.outliers);
}

SummaryWork HeadCompaction::end() {
  // Release room that only a prompt's end needed.
  for (auto* list : {&entries_->outliers, &entries_->pending}) list->shrink_to_fit();
  for (auto& list : entries_->levels) list.shrink_to_fit();
  return work_;
}

void HeadCompaction::take_page(size_t level, size_t first, std::vector<kernels::TokenPlace>* places) {
  for (SummaryEntry& entry : std::span(entries_->levels[level]).subspan(first, kPageTokens)) {
    places->push_back(place_of(entry));
    entry.place = SummaryEntry::kInQuantized;
  }
}

std::vector<HeadCompaction::Write> HeadCompaction::settle() {
  int64_t total = 0;
  entries_->for_each([&](const SummaryEntry& entry) { total += entry.place == SummaryEntry::kInQuantized ? 0 : 1; });
  std::vector<bool> taken(static_cast<size_t>(total), false);
  const auto stays = [&](const SummaryEntry& entry) {
    return entry.place == SummaryEntry::kInQuantized || (entry.place >= 0 && entry.place < total);
  };
  entries_->for_each([&](const SummaryEntry& entry) {
    if (entry.place >= 0 && entry.place < total) taken[static_cast<size_t>(entry.place)] = true;
  });
  std::vector<Write> writes;
  size_t free = 0;
  entries_->for_each([&](SummaryEntry& entry) {
    if (stays(entry)) return;
    while (taken[free]) ++free;
    writes.push_back({static_cast<int64_t>(free), place_of(entry)});
    entry.place = static_cast<int32_t>(free++);
  });
  return writes;
}

void compact(kernels::KvBackend& backend, const CacheShape& shape, std::span<HeadCompaction> heads) {
  for (;;) {
    HeadCompaction::Jobs jobs;
    std::vector<HeadCompaction*> busy;
    for (HeadCompaction& head : heads) {
      if (head.step(&jobs)) busy.push_back(&head);
    }
    if (busy.empty()) return;
    kernels::PendingResults results(backend);
    entry_stats(backend, shape, jobs.stats);
    summarize(backend, shape, jobs.summaries);
    results.wait();
    for (HeadCompaction* const head : busy) head->absorb();
  }
}

}  // namespace smartkv

#include "cache/stores/head_units.h"

#include <algorithm>

namespace smartkv {

using kernels::kPageTokens;

HeadUnits::HeadUnits(const PolicyContext& context)
    : pool_(context.pool), pages_(context.pool), units_(static_cast<size_t>(context.shape.n_kv_heads)) {}

int64_t HeadUnits::n_units() const {
  int64_t n = 0;
  for (const std::vector<int32_t>& units : units_) n += static_cast<int64_t>(units.size());
  return n;
}

int64_t HeadUnits::whole_pages() const {
  for (int64_t page = 0;; ++page) {
    for (int64_t h = 0; h < heads(); ++h) {
      if (units(h) <= page || units_[static_cast<size_t>(h)][static_cast<size_t>(page)] != page * heads() + h)
        return page;
    }
  }
}

void HeadUnits::view(std::vector<kernels::KvSegment>* segments) const {
  const int64_t whole = whole_pages();
  for (int64_t page = 0; page < whole; ++page) segments->push_back(pages_.segment(page, kPageTokens));
  for (int64_t h = 0; h < heads(); ++h) {
    const std::vector<int32_t>& units = units_[static_cast<size_t>(h)];
    for (size_t i = static_cast<size_t>(whole); i < units.size(); ++i) {
      segments->push_back(pages_.segment(units[i] / heads(), kPageTokens).of_head(units[i] % heads(), h));
    }
  }
}

int64_t HeadUnits::unit_of(int64_t head, int64_t slot) const {
  return units_[static_cast<size_t>(head)][static_cast<size_t>(slot / kPageTokens)];
}

kernels::TokenPlace HeadUnits::place(int64_t head, int64_t slot) const {
  const int64_t unit = unit_of(head, slot);
  return pages_.place(unit / heads() * kPageTokens + slot % kPageTokens, unit % heads());
}

kernels::TokenPlace HeadUnits::own_place(int64_t head, int64_t slot) {
  pages_.own(unit_of(head, slot) / heads() * kPageTokens);
  return place(head, slot);
}

kernels::PageCopy HeadUnits::move(int32_t from, int32_t to) {
  pages_.own(to / heads() * kPageTokens);
  return {pages_.place(from / heads() * kPageTokens, from % heads()).k,
          pages_.place(to / heads() * kPageTokens, to % heads()).k, static_cast<size_t>(pool_->page_bytes() / heads())};
}

void HeadUnits::resize(std::span<const int64_t> wanted) {
  const int64_t before = n_pages();
  int64_t after = 0;
  for (const int64_t n : wanted) after += n;
  after = (after + heads() - 1) / heads();
  std::vector<bool> used(static_cast<size_t>(std::max(before, after) * heads()));
  for (size_t h = 0; h < units_.size(); ++h) {
    units_[h].resize(std::min(units_[h].size(), static_cast<size_t>(wanted[h])));
    for (const int32_t unit : units_[h]) used[static_cast<size_t>(unit)] = true;
  }
  const auto take_free = [&](size_t preferred) {
    const size_t unit = preferred < used.size() && !used[preferred]
                            ? preferred
                            : static_cast<size_t>(std::find(used.begin(), used.end(), false) - used.begin());
    used[unit] = true;
    return static_cast<int32_t>(unit);
  };
  pages_.reserve(before * kPageTokens, after * kPageTokens);
  std::vector<kernels::PageCopy> copies;
  for (std::vector<int32_t>& units : units_) {  // Move units out of the pages that are freed.
    for (int32_t& unit : units) {
      if (unit < after * heads()) continue;
      const int32_t from = std::exchange(unit, take_free(used.size()));
      copies.push_back(move(from, unit));
    }
  }
  pool_->backend()->copy(copies);
  pages_.truncate(after * kPageTokens);
  used.resize(static_cast<size_t>(after * heads()));
  bool more = true;
  for (int64_t i = 0; more; ++i) {
    more = false;
    for (int64_t h = 0; h < heads(); ++h) {
      const int64_t n = wanted[static_cast<size_t>(h)];
      more = more || i < n;
      if (units(h) == i && i < n)
        units_[static_cast<size_t>(h)].push_back(take_free(static_cast<size_t>(i * heads() + h)));
    }
  }
}

void HeadUnits::save(StateWriter* out) const {
  out->value(n_pages());
  pages_.save(n_pages() * kPageTokens, out);
  for (const std::vector<int32_t>& units : units_) out->values(units);
}

void HeadUnits::load(int64_t most_pages, StateReader* in) {
  const auto n_pages = in->value<int64_t>();
  in->expect(n_pages >= 0 && n_pages <= most_pages, "a count of pages");
  pages_.load(0, n_pages * kPageTokens, in);
  std::vector<bool> used(static_cast<size_t>(n_pages * heads()));
  for (std::vector<int32_t>& units : units_) {
    units = in->values<int32_t>();
    for (const int32_t unit : units) {
      in->expect(unit >= 0 && unit < static_cast<int64_t>(used.size()) && !used[static_cast<size_t>(unit)],
                 "a unit that no other head uses");
      used[static_cast<size_t>(unit)] = true;
    }
  }
  in->expect(n_pages * heads() - n_units() < heads(), "no unused page");
}

}  // namespace smartkv

// One block of query rows against the pages of a split, on the device: pages to shared memory, scores, online softmax,
// values.
//
// A block has four warps. kRowWarps of them lie side by side over the rows, 16 rows each, and 4 / kRowWarps over the
// tokens of a page. Decoding has few rows, so all warps take the same 16 rows and a quarter of the tokens each. Prompts
// have 64 rows.
//
// Scores and values are matrix products of fragments (platform.h). Lane i = 4 g + j has rows g and g + 8 of its warp's
// rows. It has four of 16 tokens [t, t + 16), which differ between the formats:
//   dense:     t + 8 half + 2 j + e
//   quantized: t + 4 j + 2 e + half      (half: half of the fragment; e: 0 or 1)
// A word of codes holds four neighbors. One mask makes a pair of its bytes 0 and 2, or of bytes 1 and 3, hence the
// order for quantized pages. The order of tokens does not matter to a sum, as long as scores and values agree.
//
// A calibrated page is decoded to a dense one in shared memory.
#pragma once

#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/calibrated_codes.h"
#include "kernels/cuda/page_codes.h"
#include "kernels/cuda/platform.h"

namespace smartkv::kernels::cuda {

constexpr float kLog2e = 1.44269504088896341f;
constexpr float kNoMaximum = -1e30f;  // Maximum of no tokens. Finite, so that differences are finite.
constexpr float kUnseen = -1e37f;     // Score of a token that a row does not see. Its weight is 0 even with kNoMaximum.

// Offsets in the shared memory of a block, in this order. The stages come last, with what Goal::kPromises writes and
// the decoded page behind them; `merged` takes their place at the end.
template <int kDim, int kRowWarps>
struct BlockLayout {
  static constexpr int kRows = 16 * kRowWarps, kTokenWarps = kWarps / kRowWarps;
  static constexpr int kQueryRow = 2 * (kDim + 8);  // In bytes: 4 banks more than a multiple of 32.
  static constexpr int kQuery = 0;                  // bf16 [kRows][kDim + 8]
  // f16 [kRows][kDim + 8]: queries times the page's scales, in the page's order of channels
  static constexpr int kFolded = kRows * kQueryRow;
  static constexpr int kLines = 2 * kFolded;  // float2 [kRows]: factor of a row's sums, and what the zeros of K add
  static constexpr int kSums = kLines + 8 * kRows;                 // float2 [kTokenWarps][kRows]: maximum and sum
  static constexpr int kKTable = kSums + 8 * kTokenWarps * kRows;  // QuadEntry [kDim / 4]
  static constexpr int kVTable = kKTable + 2 * kDim;               // QuadEntry [kPage / 4]
  static constexpr int kVLines = kVTable + 2 * kPage;              // float4 [kPage]: scale, zero and lift of a token
  static constexpr int kStages = kVLines + 16 * kPage;
  static constexpr int kMergedRow = kDim + 8;  // In floats: 8 banks more than a multiple of 32.
  static constexpr int kMergedBytes = 4 * kRows * kMergedRow;

  static size_t bytes(const ItemClass& items) {
    const int pages = items.stages * items.stage_bytes + items.decoded_bytes;
    return static_cast<size_t>(kStages + (pages > kMergedBytes ? pages : kMergedBytes));
  }
};

// Returns the row of `out` [n, n_heads] of row r of a block.
__device__ __forceinline__ int64_t output_row(const Shape& shape, const Rows& rows, int r) {
  const int group = shape.n_heads / shape.n_kv_heads;
  return int64_t{rows.query + r / rows.n_heads} * shape.n_heads + rows.kv_head * group + rows.head + r % rows.n_heads;
}

// The result that a block computes.
enum class Goal { kOutput, kSums, kProbabilities, kPromises };

// Returns how many parts the promises of indexed pages to a KV head of a query have. A part is the sum over the query
// heads that are rows of one block.
SMARTKV_HOST_DEVICE constexpr int promise_parts(int group) { return (group + 15) / 16; }
constexpr size_t kPromiseBytes = 16 * kPage * sizeof(float);  // Shared memory behind the stages, for Goal::kPromises.

template <int kDim, int kRowWarps, Goal kGoal>
class Block {
  using Layout = BlockLayout<kDim, kRowWarps>;
  static constexpr int kRows = Layout::kRows, kTokenWarps = Layout::kTokenWarps;
  static constexpr int kTiles = kPage / 16 / kTokenWarps;  // Tiles of 16 tokens, per warp.
  static constexpr bool kValues = kGoal == Goal::kOutput;

 public:
  __device__ Block(const Tables& tables, const Item& item)
      : tables_(tables),
        item_(item),
        task_(tables.tasks[item.rows.task]),
        segments_(tables.segments + task_.segment),
        dim_(tables.shape.head_dim),
        rows_(item.rows.n_queries * item.rows.n_heads),
        thread_(static_cast<int>(threadIdx.x)),
        shared_(shared_memory()) {
    const int lane = thread_ % 32, warp = thread_ / 32;
    group_ = lane / 4;
    part_ = lane % 4;
    row_warp_ = warp % kRowWarps;
    token_warp_ = warp / kRowWarps;
    // Tokens from the split's beginning on that the first query sees.
    const int64_t seen = task_.tokens - task_.n + item.rows.query + 1 - item.start;
    for (int half = 0; half < 2; ++half) {
      m_[half] = kNoMaximum;
      l_[half] = base_[half] = 0.0f;
      seen_[half] = static_cast<int>(seen) + row(half) / item.rows.n_heads;
    }
    if constexpr (kValues) {
      for (auto& tile : o_) {
        for (float& x : tile) x = 0.0f;
      }
    }
  }

  __device__ void run() {
    load_queries();
    Cursor issued = first(), used = issued;
    for (int stage = 0; stage < tables_.stages - 1; ++stage) {
      issue(issued, stage);
    }
    int stage = 0, free_stage = tables_.stages - 1;
    while (used.segment < item_.segment_end) {
      if (tables_.stages == 2) {
        copy_async_wait<0>();
      } else {
        copy_async_wait<1>();  // There are three stages.
      }
      __syncthreads();  // The page is there for all threads, and all are done with the page before it.
      issue(issued, free_stage);
      page(segments_[used.segment], stage_of(stage), used.start);
      next(used);
      stage = stage + 1 == tables_.stages ? 0 : stage + 1;
      free_stage = free_stage + 1 == tables_.stages ? 0 : free_stage + 1;
    }
    copy_async_wait<0>();
  }

  // Writes the result of all pages to `out`, or to the partial results.
  __device__ void write_output() {
    merge_warps();
    const auto* const sums = at<float2>(Layout::kSums);
    const auto* const merged = at<float>(Layout::kStages);
    const int pairs = dim_ / 2;
    for (int i = thread_; i < rows_ * pairs; i += kThreads) {
      const int r = i / pairs, d = i % pairs * 2;
      const float* const o = merged + r * Layout::kMergedRow + d;
      if (item_.rows.partial < 0) {
        const float share = 1.0f / sums[r].y;
        const int64_t to = output_row(tables_.shape, item_.rows, r) * dim_ + d;
        *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(task_.out) + to) = pack_bf16(o[0] * share, o[1] * share);
      } else {
        *reinterpret_cast<float2*>(partial(r) + d) = make_float2(o[0], o[1]);
      }
    }
    write_sums();
  }

  // Writes the maximum and the sum of each row to the partial results.
  __device__ void write_sums() {
    if constexpr (!kValues) merge_sums();
    if (item_.rows.partial < 0) return;
    const auto* const sums = at<float2>(Layout::kSums);
    for (int r = thread_; r < rows_; r += kThreads) *reinterpret_cast<float2*>(partial(r) + dim_) = sums[r];
  }

  // Merges the sums of all splits. The probabilities are parts of these sums.
  __device__ void load_sums() {
    for (int half = 0; half < 2; ++half) {
      if (row(half) >= rows_) continue;
      for (int split = 0; split < item_.rows.splits; ++split) {
        const float* const from = tables_.partial + partial_row(split, row(half)) * (dim_ + kPartialPadding) + dim_;
        const float m = fmaxf(m_[half], from[0]);
        l_[half] = l_[half] * exp2_fast(m_[half] - m) + from[1] * exp2_fast(from[0] - m);
        m_[half] = m;
      }
    }
  }

 private:
  struct Cursor {
    int segment, start;  // start: tokens from the beginning of the split
  };

  template <typename T>
  __device__ T* at(int offset) const {
    return reinterpret_cast<T*>(shared_ + offset);
  }
  __device__ unsigned char* stage_of(int stage) const {
    return shared_ + Layout::kStages + stage * tables_.stage_bytes;
  }
  __device__ unsigned char* decoded_page() const {
    return stage_of(tables_.stages) + (kGoal == Goal::kPromises ? kPromiseBytes : 0);
  }
  __device__ int row(int half) const { return 16 * row_warp_ + group_ + 8 * half; }
  __device__ int tile(int i) const { return token_warp_ * kTiles + i; }
  __device__ int64_t partial_row(int split, int r) const { return int64_t{item_.rows.partial} + split * rows_ + r; }
  __device__ float* partial(int r) const {
    return tables_.partial + partial_row(item_.split, r) * (dim_ + kPartialPadding);
  }
  __device__ const float* query(int r) const {
    const Rows& rows = item_.rows;
    const int head = rows.kv_head * (tables_.shape.n_heads / tables_.shape.n_kv_heads) + rows.head + r % rows.n_heads;
    return task_.q + (rows.query + r / rows.n_heads) * task_.q_stride + int64_t{head} * dim_;
  }

  // Skips segments of other KV heads, and segments of which no promises are wanted.
  __device__ void skip_others(Cursor& cursor) const {
    while (cursor.segment < item_.segment_end) {
      const Segment& segment = segments_[cursor.segment];
      const bool own = segment.kv_head < 0 || segment.kv_head == item_.rows.kv_head;
      if (own && (kGoal != Goal::kPromises || segment.scored >= 0)) return;
      cursor.start += segment.tokens;
      ++cursor.segment;
    }
  }
  __device__ Cursor first() const {
    Cursor cursor{item_.segment, 0};
    skip_others(cursor);
    return cursor;
  }
  __device__ void next(Cursor& cursor) const {
    cursor.start += segments_[cursor.segment].tokens;
    ++cursor.segment;
    skip_others(cursor);
  }

  // Loads the queries. Both matrices of queries are 0 past the rows.
  __device__ void load_queries() {
    auto* const words = at<uint32_t>(Layout::kQuery);
    constexpr int kRowWords = Layout::kQueryRow / 4;
    for (int i = thread_; i < 2 * kRows * kRowWords; i += kThreads) words[i] = 0;
    for (int i = thread_; i < kRows; i += kThreads) at<float2>(Layout::kLines)[i] = make_float2(0.0f, 0.0f);
    __syncthreads();
    for (int i = thread_; i < rows_ * dim_ / 2; i += kThreads) {
      const int r = i / (dim_ / 2), pair = i % (dim_ / 2);
      const float* const q = query(r) + 2 * pair;
      words[r * kRowWords + pair] = pack_bf16(q[0], q[1]);
    }
    // The barrier of the first page makes them visible.
  }

  // Starts the copies of the next page, if there is one, and commits them as a group.
  __device__ void issue(Cursor& cursor, int stage) {
    if (cursor.segment < item_.segment_end) {
      copy_page(segments_[cursor.segment], stage_of(stage));
      next(cursor);
    }
    copy_async_commit();
  }

  __device__ void copy(unsigned char* to, const unsigned char* from, int bytes) const {
    for (int i = 16 * thread_; i < bytes; i += 16 * kThreads) copy_async_16(to + i, from + i);
  }
  // Copies `rows` rows of row_bytes bytes each. They come to lie `stride` bytes apart.
  __device__ void copy_rows(unsigned char* to, const unsigned char* from, int rows, int row_bytes, int stride) const {
    const int chunks = row_bytes / 16;
    for (int i = thread_; i < rows * chunks; i += kThreads) {
      copy_async_16(to + i / chunks * stride + i % chunks * 16, from + 16 * i);
    }
  }
  __device__ unsigned char* copy_codes(unsigned char* to, const unsigned char* from, const uint8_t (&quads)[4],
                                       int extent) const {
    for (int run = 0; run < 4; ++run) {
      const int bytes = block_rows(extent) * bits_of_run(run) / 2, stride = quad_stride(bytes);
      copy_rows(to, from, quads[run], bytes, stride);
      from += quads[run] * bytes;
      to += quads[run] * stride;
    }
    return to;
  }

  // Copies a page to a stage: the bias, then K and V of a dense page, or scales and zeros of the columns, codes of K
  // and codes of V of a quantized page.
  __device__ void copy_page(const Segment& segment, unsigned char* to) const {
    const int64_t offset = item_.rows.kv_head * segment.head_stride;
    const unsigned char* const k = segment.k + offset;
    if (segment.bias != nullptr) {
      copy(to, reinterpret_cast<const unsigned char*>(segment.bias + item_.rows.kv_head * kPage), kBiasBytes);
    }
    to += kBiasBytes;
    if (segment.widths != nullptr) {
      const FlatWidths& widths = *widths_of(segment.widths, item_.rows.kv_head, dim_).head;
      copy(to, segment.k + widths.first, kValues || widths.wide_tokens > 0 ? widths.total : widths.v[0].codes);
      return;
    }
    if (segment.k_codes == 0) {
      copy_rows(to, k, dim_ / 2, 4 * kPage, kDenseKRow);
      if constexpr (kValues)
        copy_rows(to + dim_ / 2 * kDenseKRow, segment.v + offset, kPage / 2, 4 * dim_, dense_v_row(dim_));
      return;
    }
    copy(to, k, segment.k_codes);
    unsigned char* const v_codes = copy_codes(to + segment.k_codes, k + segment.k_codes, segment.k_quads, kPage);
    if constexpr (kValues) copy_codes(v_codes, k + segment.v_codes, segment.v_quads, dim_);
  }

  // Zeroes V past the page's tokens. The probabilities there are 0, but the slots may hold NaN.
  __device__ void clear_values_past(int tokens, unsigned char* v) const {
    const int words = dim_, pairs = kPage / 2 - tokens / 2;
    for (int i = thread_; i < pairs * words; i += kThreads) {
      const int pair = tokens / 2 + i / words;
      uint32_t& both = reinterpret_cast<uint32_t*>(v + pair * dense_v_row(dim_))[i % words];
      both = 2 * pair < tokens ? both & 0xffffu : 0u;
    }
    __syncthreads();
  }

  __device__ void page(const Segment& segment, unsigned char* stage, int start) {
    float s[kTiles][2][4] = {};
    const bool coded = segment.k_codes != 0;
    unsigned char* from = stage + kBiasBytes;
    if (segment.widths != nullptr) from = decode_page(segment, from);
    if constexpr (kValues) {
      if (!coded && segment.tokens < kPage) clear_values_past(segment.tokens, from + dim_ / 2 * kDenseKRow);
    }
    if (coded) {
      fold(segment, from);
      __syncthreads();
      coded_scores(from + segment.k_codes, s);
    } else {
      dense_scores(from, s);
    }
    const float* const bias = segment.bias == nullptr ? nullptr : reinterpret_cast<const float*>(stage);
    finish_scores(bias, coded, start, segment.tokens, s);
    if constexpr (kGoal == Goal::kProbabilities) {
      write_probabilities(coded, start, segment.tokens, s);
    } else if constexpr (kGoal == Goal::kPromises) {
      write_promises(segment.scored, s);
    } else {
      softmax(s);
    }
    if constexpr (kValues) {
      if (coded) {
        coded_values(from + segment.k_codes + k_code_bytes(segment), s);
      } else {
        dense_values(from + dim_ / 2 * kDenseKRow, s);
      }
    }
  }

  // Decodes a calibrated page. Returns the dense page.
  __device__ unsigned char* decode_page(const Segment& segment, const unsigned char* page) const {
    unsigned char* const to = decoded_page();
    auto* const mean = reinterpret_cast<float*>(to + decoded_mean(dim_));
    const WidthView widths = widths_of(segment.widths, item_.rows.kv_head, dim_);
    rotate_mean(widths, segment.middle, dim_, mean);
    __syncthreads();
    decode_keys(widths, page, mean, segment.within, dim_, [&](int token, int channel, float x) {
      reinterpret_cast<uint16_t*>(to + channel / 2 * kDenseKRow)[2 * token + channel % 2] =
          static_cast<uint16_t>(pack_bf16(x, 0.0f));
    });
    if constexpr (kValues) {
      unsigned char* const v = to + dim_ / 2 * kDenseKRow;
      decode_values(widths, page, dim_, [&](int token, int channel, const float(&x)[4]) {
        for (int two = 0; two < 4; two += 2) {
          auto* const row = reinterpret_cast<uint32_t*>(v + (token + two) / 2 * dense_v_row(dim_));
          row[channel] = pack_bf16(x[two], x[two + 1]);
        }
      });
    }
    __syncthreads();
    return to;
  }

  __device__ static int k_code_bytes(const Segment& segment) {
    int bytes = 0;
    for (int run = 0; run < 4; ++run) bytes += segment.k_quads[run] * quad_stride(kPage * bits_of_run(run) / 2);
    return bytes;
  }

  // Folds the page's scales into the queries, and its zeros into what they add to the scores of a row. Also prepares
  // the lines of V's tokens and the tables of where codes lie.
  __device__ void fold(const Segment& segment, const unsigned char* header) {
    const auto halves = [&](int offset) { return reinterpret_cast<const uint16_t*>(header + offset); };
    for (int quad = thread_; quad < dim_ / 4; quad += kThreads) {
      at<QuadEntry>(Layout::kKTable)[quad] = entry_of(segment.k_quads, quad, kPage);
    }
    if constexpr (kValues) {
      if (thread_ < kPage) {
        const Line line = line_of(segment.v_quads, thread_, halves(segment.v_scales), halves(segment.v_zeros));
        at<float4>(Layout::kVLines)[thread_] = {line.scale, line.zero, line.middle + (line.eight ? 0.0f : kBf16Offset),
                                                0.0f};
        if (thread_ % 4 == 0)
          at<QuadEntry>(Layout::kVTable)[thread_ / 4] = entry_of(segment.v_quads, thread_ / 4, dim_);
      }
    }
    const uint8_t* const order =
        segment.channel_order == nullptr ? nullptr : segment.channel_order + item_.rows.kv_head * dim_;
    for (int r = thread_ / 32; r < rows_; r += kWarps) fold_row(segment, halves(0), halves(segment.k_zeros), order, r);
  }

  // Folds one row, by a warp. f16 has 11 bits but a narrow range, so the greatest value of a row becomes 2^14 to 2^15.
  __device__ void fold_row(const Segment& segment, const uint16_t* scales, const uint16_t* zeros, const uint8_t* order,
                           int r) {
    constexpr int kQuads = (kDim + 127) / 128;  // Quads of a lane.
    const float* const q = query(r);
    const int lane = thread_ % 32;
    float scaled[kQuads][4] = {}, middle[kQuads] = {}, offset = 0.0f, most = 0.0f;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int quad = lane + 32 * i;
      if (quad >= dim_ / 4) continue;
      for (int c = 0; c < 4; ++c) {
        const int column = 4 * quad + c;
        const Line line = line_of(segment.k_quads, column, scales, zeros);
        const float value = q[order == nullptr ? column : order[column]];
        offset = fmaf(value, line.zero, offset);
        scaled[i][c] = value * line.scale;
        middle[i] = line.middle;  // Middle of the quad.
        most = fmaxf(most, fabsf(scaled[i][c]));
      }
    }
    most = max_of_warp(most);
    constexpr int kBias = 127, kTop = 14, kLeast = -100;  // Exponents of f32. A smaller maximum counts as 2^kLeast.
    int exponent = static_cast<int>(__float_as_uint(most) >> 23) - kBias;
    if (exponent < kLeast) exponent = kLeast;
    const float unit = __uint_as_float(static_cast<uint32_t>(kBias + kTop - exponent) << 23);
    const float factor = __uint_as_float(static_cast<uint32_t>(kBias - kTop + exponent) << 23);
    auto* const folded = at<uint32_t>(Layout::kFolded + r * Layout::kQueryRow);
    float lifted = 0.0f;  // Sum that the offsets of the codes add to the row's sums.
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int quad = lane + 32 * i;
      if (quad >= dim_ / 4) continue;
      // In the order of half_fragment().
      const uint32_t even = pack_half(scaled[i][0] * unit, scaled[i][2] * unit);
      const uint32_t odd = pack_half(scaled[i][1] * unit, scaled[i][3] * unit);
      const int word = quad / 4 * 8 + quad % 4;
      folded[word] = even;
      folded[word + 4] = odd;
      lifted = fmaf(middle[i] + kHalfOffset, low_half(even) + high_half(even) + low_half(odd) + high_half(odd), lifted);
    }
    const float sum = sum_of_warp(fmaf(-lifted, factor, offset));
    if (lane == 0) at<float2>(Layout::kLines)[r] = make_float2(factor, sum);
  }

  __device__ const unsigned char* query_tile(int matrix, int step) const {
    return shared_ + matrix + 16 * row_warp_ * Layout::kQueryRow + 32 * step;
  }

  __device__ void dense_scores(const unsigned char* k, float (&s)[kTiles][2][4]) const {
    const auto* const words = reinterpret_cast<const uint32_t*>(k);
    constexpr int kRowWords = kDenseKRow / 4;
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (16 * step >= dim_) break;
      uint32_t a[4];
      load_a(a, query_tile(Layout::kQuery, step), Layout::kQueryRow);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t* const b = words + (8 * step + part_) * kRowWords + 16 * tile(i) + 8 * half + group_;
          mma_bf16(s[i][half], a, b[0], b[4 * kRowWords]);
        }
      }
    }
  }

  __device__ void coded_scores(const unsigned char* k, float (&s)[kTiles][2][4]) const {
    const auto* const words = reinterpret_cast<const uint32_t*>(k);
#pragma unroll
    for (int step = 0; step < kDim / 16; ++step) {
      if (16 * step >= dim_) break;
      uint32_t a[4];
      load_a(a, query_tile(Layout::kFolded, step), Layout::kQueryRow);
      const QuadEntry quad = at<QuadEntry>(Layout::kKTable)[4 * step + part_];
      const uint32_t* const codes = words + quad.words();
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        // Two neighbors: column g of half 0 and of half 1.
        const uint2 both = *reinterpret_cast<const uint2*>(codes + part_words(quad, tile(i)) + 2 * group_);
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          uint32_t even, odd;
          half_fragment(codes_of(quad, codes, half == 0 ? both.x : both.y, tile(i), 2 * group_ + half), even, odd);
          mma_f16(s[i][half], a, even, odd);
        }
      }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const float2 line = at<float2>(Layout::kLines)[row(h)];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          float& score = s[i][x / 2][2 * h + x % 2];
          score = fmaf(score, line.x, line.y);
        }
      }
    }
  }

  // Returns the token of s[i][half][2 h + e], counted from the page's first.
  __device__ int token(bool coded, int i, int half, int e) const {
    return 16 * tile(i) + (coded ? 4 * part_ + 2 * e + half : 8 * half + 2 * part_ + e);
  }

  // Turns scores into scores in base 2, with their bias. Sets kUnseen where a row does not see a token.
  __device__ void finish_scores(const float* bias, bool coded, int start, int tokens, float (&s)[kTiles][2][4]) const {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
#pragma unroll
      for (int x = 0; x < 8; ++x) {
        const int t = token(coded, i, x / 4, x % 2);
        float& score = s[i][x / 4][x % 4];
        score *= tables_.shape.scale;
        if (bias != nullptr) score = fmaf(bias[t], kLog2e, score);
        if (t >= tokens || start + t >= seen_[x % 4 / 2]) score = kUnseen;
      }
    }
  }

  // Turns scores into probabilities 2^(s - m). Updates m, l, o and base.
  __device__ void softmax(float (&s)[kTiles][2][4]) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = m_[h];
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        most = fmaxf(most, fmaxf(fmaxf(s[i][0][2 * h], s[i][0][2 * h + 1]), fmaxf(s[i][1][2 * h], s[i][1][2 * h + 1])));
      }
      most = max_of_four(most);
      const float keep = exp2_fast(m_[h] - most);
      m_[h] = most;
      l_[h] *= keep;
      base_[h] *= keep;
      if constexpr (kValues) {
#pragma unroll
        for (int d = 0; d < kDim / 8; ++d) {
          o_[d][2 * h] *= keep;
          o_[d][2 * h + 1] *= keep;
        }
      }
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
#pragma unroll
        for (int x = 0; x < 4; ++x) {
          float& p = s[i][x / 2][2 * h + x % 2];
          p = exp2_fast(p - most);
          l_[h] += p;
        }
      }
    }
  }

  __device__ void dense_values(const unsigned char* v, const float (&s)[kTiles][2][4]) {
    const auto* const words = reinterpret_cast<const uint32_t*>(v);
    const int row_words = dense_v_row(dim_) / 4;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const uint32_t a[4] = {pack_bf16(s[i][0][0], s[i][0][1]), pack_bf16(s[i][0][2], s[i][0][3]),
                             pack_bf16(s[i][1][0], s[i][1][1]), pack_bf16(s[i][1][2], s[i][1][3])};
      const uint32_t* const b = words + (8 * tile(i) + part_) * row_words + group_;
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        if (8 * d >= dim_) break;
        mma_bf16(o_[d], a, b[8 * d], b[4 * row_words + 8 * d]);
      }
    }
  }

  __device__ void coded_values(const unsigned char* v, const float (&s)[kTiles][2][4]) {
    const auto* const words = reinterpret_cast<const uint32_t*>(v);
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      const int token_quad = 4 * tile(i) + part_;
      float4 line[4];
#pragma unroll
      for (int t = 0; t < 4; ++t) line[t] = at<float4>(Layout::kVLines)[4 * token_quad + t];
      uint32_t a[4];
#pragma unroll
      for (int x = 0; x < 4; ++x) {  // Row g + 8 (x % 2), tokens `half` and half + 2 of the quad.
        const int half = x / 2, h = x % 2;
        const float p0 = s[i][half][2 * h], p1 = s[i][half][2 * h + 1];
        a[x] = pack_bf16(p0 * line[half].x, p1 * line[half + 2].x);
        base_[h] = fmaf(p0, line[half].y, fmaf(p1, line[half + 2].y, base_[h]));
        base_[h] -= line[0].z * (low_bf16(a[x]) + high_bf16(a[x]));
      }
      const QuadEntry quad = at<QuadEntry>(Layout::kVTable)[token_quad];
      const uint32_t* const codes = words + quad.words();
#pragma unroll
      for (int d = 0; d < kDim / 8; ++d) {
        if (8 * d >= dim_) break;
        const uint32_t* const block = codes + d / 8 * quad.block_words();
        const int part = d / 2 % 4, r = 8 * (d % 2) + group_;
        uint32_t even, odd;
        bf16_fragment(quad, codes_of(quad, block, block[part_words(quad, part) + r], part, r), even, odd);
        mma_bf16(o_[d], a, even, odd);
      }
    }
  }

  // Writes the probabilities of the tokens that each query sees. A KV head gets the maximum over all its rows.
  __device__ void write_probabilities(bool coded, int start, int tokens, const float (&s)[kTiles][2][4]) const {
    for (int h = 0; h < 2; ++h) {
      if (row(h) >= rows_) continue;
      const int64_t i = item_.rows.query + row(h) / item_.rows.n_heads;
      const int64_t first = task_.tokens - task_.n + 1;  // Tokens that query 0 sees.
      float* const to = static_cast<float*>(task_.out) + tables_.shape.n_kv_heads * (i * first + i * (i - 1) / 2) +
                        item_.rows.kv_head * (first + i) + item_.start + start;
      for (int tile = 0; tile < kTiles; ++tile) {
        for (int x = 0; x < 4; ++x) {
          const int t = token(coded, tile, x / 2, x % 2);
          if (t >= tokens || start + t >= seen_[h]) continue;
          const float p = exp2_fast(s[tile][x / 2][2 * h + x % 2] - m_[h]) / l_[h];
          atomicMax(reinterpret_cast<int*>(to + t), __float_as_int(p));  // Floats above 0 have the order of their bits.
        }
      }
    }
  }

  // Writes what the tokens of a page promise: for each query, the sum of the probabilities of its rows. Each warp
  // writes its own tokens. The barrier of the next page comes before the warp writes to shared memory again.
  __device__ void write_promises(int scored, const float (&s)[kTiles][2][4]) const {
    static_assert(kTiles == 1 && kRows == 16);
    auto* const own = at<float>(Layout::kStages + tables_.stages * tables_.stage_bytes) + token_warp_ * 16 * kRows;
    for (int x = 0; x < 8; ++x) {
      const int h = x % 4 / 2;
      if (row(h) < rows_)
        own[row(h) * 16 + token(true, 0, x / 4, x % 2) % 16] = exp2_fast(s[0][x / 4][x % 4] - m_[h]) / l_[h];
    }
    __syncwarp();
    const Rows& rows = item_.rows;
    const int kv_heads = tables_.shape.n_kv_heads, parts = promise_parts(tables_.shape.n_heads / kv_heads);
    const int64_t page = (int64_t{scored} * kv_heads + rows.kv_head) * parts + rows.head / kRows;
    float* const to = static_cast<float*>(task_.out) + page * kPage + 16 * token_warp_;
    for (int i = thread_ % 32; i < rows.n_queries * 16; i += 32) {
      const int query = i / 16;
      const float* const of = own + query * rows.n_heads * 16 + i % 16;
      float sum = of[0];
      for (int head = 1; head < rows.n_heads; ++head) sum += of[head * 16];
      to[(rows.query + query) * task_.out_stride + i % 16] = sum;
    }
  }

  // Writes the maximum and the sum of each row over all warps to kSums[row]. Returns the factors that scale this warp's
  // rows.
  __device__ float2 merge_sums() {
    auto* const sums = at<float2>(Layout::kSums);
    for (int h = 0; h < 2; ++h) {
      const float l = sum_of_four(l_[h]);
      if (part_ == 0) sums[token_warp_ * kRows + row(h)] = make_float2(m_[h], l);
    }
    __syncthreads();
    float2 merged[2];
    for (int h = 0; h < 2; ++h) {
      merged[h] = make_float2(kNoMaximum, 0.0f);
      for (int warp = 0; warp < kTokenWarps; ++warp) {
        const float2 other = sums[warp * kRows + row(h)];
        const float m = fmaxf(merged[h].x, other.x);
        merged[h] = make_float2(m, merged[h].y * exp2_fast(merged[h].x - m) + other.y * exp2_fast(other.x - m));
      }
    }
    __syncthreads();
    for (int h = 0; h < 2; ++h) {
      if (part_ == 0 && token_warp_ == 0) sums[row(h)] = merged[h];
    }
    __syncthreads();
    return make_float2(exp2_fast(m_[0] - merged[0].x), exp2_fast(m_[1] - merged[1].x));
  }

  // Writes the unnormalized output of all warps to `merged`, which takes the place of the stages.
  __device__ void merge_warps() {
    const float2 factors = merge_sums();
    auto* const merged = at<float>(Layout::kStages);
    for (int turn = 0; turn < kTokenWarps; ++turn) {
      if (turn == token_warp_) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const float factor = h == 0 ? factors.x : factors.y, base = sum_of_four(base_[h]);
#pragma unroll
          for (int d = 0; d < kDim / 8; ++d) {
            auto* const to = reinterpret_cast<float2*>(merged + row(h) * Layout::kMergedRow + 8 * d + 2 * part_);
            const float2 mine = make_float2((o_[d][2 * h] + base) * factor, (o_[d][2 * h + 1] + base) * factor);
            *to = turn == 0 ? mine : make_float2(to->x + mine.x, to->y + mine.y);
          }
        }
      }
      __syncthreads();
    }
  }

  const Tables& tables_;
  const Item item_;
  const Task task_;
  const Segment* const segments_;
  const int dim_, rows_, thread_;
  unsigned char* const shared_;
  int group_, part_, row_warp_, token_warp_;  // g and j of the lane, and the place of its warp.
  int seen_[2];                               // Tokens of the split that the lane's rows see.
  float m_[2], l_[2], base_[2];               // For the lane's rows. l_ and base_ count the lane's tokens only.
  float o_[kValues ? kDim / 8 : 1][4];
};

}  // namespace smartkv::kernels::cuda

#include "kernels/cuda/device_sampler.h"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kernels/cuda/attention_tables.h"
#include "kernels/cuda/platform.h"
#include "kernels/token_weight.h"

namespace smartkv::kernels::cuda {
namespace {

constexpr int kBlock = static_cast<int>(TokenNoise::kBlockTokens);
static_assert(kBlock == 64, "a lane has two tokens of a block");

constexpr int kScanBlocks = 32;  // Blocks of tokens that a block of threads scans.
constexpr int kDrawThreads = 512, kDrawWarps = kDrawThreads / 32;
constexpr int kAhead = 4;                                  // Blocks of tokens that a warp reads at once.
constexpr int kDigitBits = 10, kDigits = 1 << kDigitBits;  // Digits of the keys that select tokens.
constexpr int kDigitsOfThread = kDigits / kDrawThreads;
constexpr int kTokenBits = 20, kKeyBits = 30 + kTokenBits;  // Bits of the weight, up to 1.0f, and of the token.
static_assert(DeviceSampler::kMostTokens < int64_t{1} << kTokenBits && kKeyBits % kDigitBits == 0);

constexpr int kNoToken = std::numeric_limits<int>::max();

struct Bias {
  int32_t token;
  float bias;
};

struct Row {
  float* logits;
  const Bias* biases;
  const SeenToken* seen;
  const int32_t* forbidden;
  const uint32_t* allowed;  // Null if all tokens are allowed.
  int32_t vocabulary, n_biases, n_seen, n_forbidden;
  float repetition, frequency, presence;
  float scale, min_p_offset, top_p;
  int32_t top_k;
  bool greedy;
  TokenNoise noise;
  // Scratch. The first two have an element per block of tokens.
  double* earliest;  // No token of the block arrives before.
  float* block_max;
  int32_t* bad;  // The first token with NaN or +inf, or kNoToken.
  DrawnToken* drawn;

  __host__ __device__ int n_blocks() const { return (vocabulary + kBlock - 1) / kBlock; }
};

__device__ __forceinline__ float infinity() { return __uint_as_float(0x7f800000u); }
__device__ __forceinline__ double never() { return static_cast<double>(infinity()); }

// A block takes a row. Biases are sorted, and the first bias of a token adds all of them.
__global__ void __launch_bounds__(kThreads) edit_logits_kernel(const Row* rows) {
  const Row& row = rows[blockIdx.x];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread == 0) *row.bad = kNoToken;
  for (int i = thread; i < row.n_biases; i += kThreads) {
    const int token = row.biases[i].token;
    if (i > 0 && row.biases[i - 1].token == token) continue;
    float logit = row.logits[token];
    for (int j = i; j < row.n_biases && row.biases[j].token == token; ++j) logit += row.biases[j].bias;
    row.logits[token] = logit;
  }
  __syncthreads();
  for (int i = thread; i < row.n_seen; i += kThreads) {
    float& logit = row.logits[row.seen[i].token];
    logit = penalised(logit, row.seen[i].output_count, row.repetition, row.frequency, row.presence);
  }
  __syncthreads();
  for (int i = thread; i < row.n_forbidden; i += kThreads) row.logits[row.forbidden[i]] = -infinity();
}

// `parts` blocks take a row, kScanBlocks blocks of tokens each. A warp takes one block of tokens at a time.
__global__ void __launch_bounds__(kThreads) scan_logits_kernel(const Row* rows, int parts) {
  const Row& row = rows[blockIdx.x / static_cast<unsigned>(parts)];
  const int first = static_cast<int>(blockIdx.x % static_cast<unsigned>(parts)) * kScanBlocks;
  const int last = first + kScanBlocks, lane = static_cast<int>(threadIdx.x % 32);
  const int end = last < row.n_blocks() ? last : row.n_blocks();
  for (int block = first + static_cast<int>(threadIdx.x / 32); block < end; block += kWarps) {
    float most = -infinity();
    for (int half = 0; half < 2; ++half) {
      const int token = block * kBlock + half * 32 + lane;
      if (token >= row.vocabulary) continue;
      float logit = row.logits[token];
      if (row.allowed != nullptr && (row.allowed[2 * block + half] >> lane & 1) == 0)
        row.logits[token] = logit = -infinity();
      if (!(logit < infinity())) atomicMin(row.bad, token);
      most = fmaxf(most, logit);
    }
    most = max_of_warp(most);
    if (lane == 0) row.block_max[block] = most;
  }
}

// An arrival in a race. The first has the least time and, among equal times, the lower number.
struct Arrival {
  double time;
  int number;

  __device__ bool before(const Arrival& other) const {
    return time != other.time ? time < other.time : number < other.number;
  }
};

__device__ Arrival first_of_warp(Arrival mine) {
  for (int mask = 16; mask > 0; mask /= 2) {
    const Arrival other{__shfl_xor_sync(kAllLanes, mine.time, mask), __shfl_xor_sync(kAllLanes, mine.number, mask)};
    if (other.before(mine)) mine = other;
  }
  return mine;
}

// The shared memory of a block that draws from a row.
struct Shared {
  unsigned long long bins[kDigits];
  unsigned long long sums[kDrawWarps];
  Arrival first[kDrawWarps];
  float max[kDrawWarps];
  int digit;                  // The bin in which a selection ends.
  unsigned long long before;  // The sum of the bins before it.
};

// Draws a token from a row, by a block.
class RowDraw {
 public:
  __device__ RowDraw(const Row& row, Shared& shared)
      : row_(row),
        shared_(shared),
        n_blocks_(row.n_blocks()),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {}

  __device__ DrawnToken draw() {
    if (*row_.bad != kNoToken) {
      const float logit = row_.logits[*row_.bad];
      return {*row_.bad, logit == infinity() ? DrawError::kInfinity : DrawError::kNan};
    }
    max_ = row_max();
    if (max_ == -infinity()) return {-1, DrawError::kAllMasked};
    if (row_.greedy) return {greedy(), DrawError::kNone};
    floor_ = max_ + row_.min_p_offset;
    if (row_.top_k > 0) select(false, row_.top_k);
    if (row_.top_p < 1.0f) select(true, 0);
    return {race(), DrawError::kNone};
  }

 private:
  __device__ float row_max() {
    float most = -infinity();
    for (int block = thread_; block < n_blocks_; block += kDrawThreads) most = fmaxf(most, row_.block_max[block]);
    most = max_of_warp(most);
    if (lane_ == 0) shared_.max[warp_] = most;
    __syncthreads();
    for (int warp = 0; warp < kDrawWarps; ++warp) most = fmaxf(most, shared_.max[warp]);
    return most;
  }

  // Returns the first arrival to all threads. All threads call it.
  __device__ Arrival first_of_all(Arrival mine) {
    mine = first_of_warp(mine);
    __syncthreads();  // Other threads may still read the last result.
    if (lane_ == 0) shared_.first[warp_] = mine;
    __syncthreads();
    for (int warp = 0; warp < kDrawWarps; ++warp) {
      if (shared_.first[warp].before(mine)) mine = shared_.first[warp];
    }
    return mine;
  }

  __device__ int greedy() {
    Arrival best{0, kNoToken};
    for (int block = thread_; block < n_blocks_; block += kDrawThreads) {
      if (row_.block_max[block] == max_ && block < best.number) best.number = block;
    }
    const int block = first_of_all(best).number;
    best.number = kNoToken;
    for (int half = 1; half >= 0; --half) {
      const int token = block * kBlock + half * 32 + lane_;
      if (token < row_.vocabulary && row_.logits[token] == max_) best.number = token;
    }
    return first_of_all(best).number;
  }

  __device__ float weight(float logit) const { return token_weight(logit, max_, row_.scale); }

  // Returns a key that orders tokens: a larger weight, or among equal weights a lower id, has a larger key.
  __device__ static uint64_t key(float weight, int token) {
    return static_cast<uint64_t>(__float_as_uint(weight)) << kTokenBits |
           static_cast<unsigned>((1 << kTokenBits) - 1 - token);
  }
  // Returns whether the block may have tokens with a key of at least `least`.
  __device__ bool reaches(int block, uint64_t least) const {
    const float most = row_.block_max[block];
    if (most < floor_) return false;
    const float bound = weight(most) * kWeightBound;
    return bound > 0 && __float_as_uint(bound) >= static_cast<uint32_t>(least >> kTokenBits);
  }

  // Calls visit(weight, key) for the tokens that are left and have a key of at least `least`.
  template <typename Visit>
  __device__ void for_tokens(uint64_t least, const Visit& visit) const {
    least = least > kept_ ? least : kept_;
    for (int first = warp_; first < n_blocks_; first += kDrawWarps * kAhead) {
      float logits[kAhead][2];
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        const int block = first + ahead * kDrawWarps;
        const bool wanted = block < n_blocks_ && reaches(block, least);
        for (int half = 0; half < 2; ++half) {
          const int token = block * kBlock + half * 32 + lane_;
          logits[ahead][half] = wanted && token < row_.vocabulary ? row_.logits[token] : -infinity();
        }
      }
#pragma unroll
      for (int ahead = 0; ahead < kAhead; ++ahead) {
        for (int half = 0; half < 2; ++half) {
          const float of_token = logits[ahead][half];
          if (of_token == -infinity() || of_token < floor_) continue;
          const float own = weight(of_token);
          const uint64_t own_key = key(own, (first + ahead * kDrawWarps) * kBlock + half * 32 + lane_);
          if (own > 0 && own_key >= least) visit(own, own_key);
        }
      }
    }
  }

  // Drops tokens. From the largest key down it sums what tokens contribute until the sum is `needed`, and drops all
  // tokens after that. A token contributes 1, or, by_mass, its mass; top_p then determines `needed`. The selection goes
  // digit by digit of the key.
  __device__ void select(bool by_mass, int64_t needed) {
    uint64_t prefix = 0;
    for (int shift = kKeyBits - kDigitBits; shift >= 0; shift -= kDigitBits) {
      __syncthreads();  // Other threads may still read the last bins.
      for (int i = 0; i < kDigitsOfThread; ++i) shared_.bins[thread_ * kDigitsOfThread + i] = 0;
      __syncthreads();
      for_tokens(prefix << (shift + kDigitBits), [&](float own, uint64_t own_key) {
        if (own_key >> (shift + kDigitBits) != prefix) return;
        const int64_t brings = by_mass ? weight_mass(own) : 1;
        atomicAdd(&shared_.bins[own_key >> shift & (kDigits - 1)], static_cast<unsigned long long>(brings));
      });
      __syncthreads();
      const bool whole = shift == kKeyBits - kDigitBits;
      const int64_t total = sum_bins();
      if (whole && by_mass) needed = top_p_mass(total, row_.top_p);
      if (whole && needed >= total) return;
      int64_t in_bin = find_bin(needed);
      prefix = prefix << kDigitBits | static_cast<unsigned>(shared_.digit);
      needed -= static_cast<int64_t>(shared_.before);
      if (by_mass && shift == kTokenBits) {  // All tokens left in the bin have one weight.
        const int64_t of_token = weight_mass(__uint_as_float(static_cast<unsigned>(prefix)));
        needed = (needed + of_token - 1) / of_token;
        in_bin /= of_token;
        by_mass = false;
      }
      if (!by_mass && needed == in_bin) {  // The whole bin is kept.
        prefix <<= shift;
        break;
      }
    }
    kept_ = prefix > kept_ ? prefix : kept_;
  }

  // Returns the digit of bin i of this thread. The first threads have the largest digits.
  __device__ int digit_of(int i) const { return kDigits - 1 - (thread_ * kDigitsOfThread + i); }

  // Returns the sum of all bins. Sets before_ to the sum of the bins before this thread's.
  __device__ int64_t sum_bins() {
    unsigned long long own = 0;
    for (int i = 0; i < kDigitsOfThread; ++i) own += shared_.bins[digit_of(i)];
    unsigned long long sum = own;
    for (int step = 1; step < 32; step *= 2) {
      const unsigned long long others = __shfl_up_sync(kAllLanes, sum, static_cast<unsigned>(step));
      if (lane_ >= step) sum += others;
    }
    if (lane_ == 31) shared_.sums[warp_] = sum;
    __syncthreads();
    unsigned long long total = 0;
    before_ = sum - own;
    for (int warp = 0; warp < kDrawWarps; ++warp) {
      if (warp < warp_) before_ += shared_.sums[warp];
      total += shared_.sums[warp];
    }
    return static_cast<int64_t>(total);
  }

  // Finds the bin in which the sum reaches `needed`, 1 to the whole, and the sum before it. Returns the sum in it.
  __device__ int64_t find_bin(int64_t needed) {
    unsigned long long before = before_;
    for (int i = 0; i < kDigitsOfThread; ++i) {
      const unsigned long long here = shared_.bins[digit_of(i)];
      if (before < static_cast<unsigned long long>(needed) &&
          static_cast<unsigned long long>(needed) <= before + here) {
        shared_.digit = digit_of(i);
        shared_.before = before;
      }
      before += here;
    }
    __syncthreads();
    return static_cast<int64_t>(shared_.bins[shared_.digit]);
  }

  // Returns the token that arrives first among those that are left.
  __device__ int race() {
    Arrival likely{never(), kNoToken};  // The number is a block of tokens.
    for (int block = thread_; block < n_blocks_; block += kDrawThreads) {
      double earliest = never();
      if (reaches(block, kept_))
        earliest = row_.noise.block(block).least / (weight(row_.block_max[block]) * kWeightBound);
      row_.earliest[block] = earliest;
      const Arrival mine{earliest, block};
      if (earliest < never() && mine.before(likely)) likely = mine;
    }
    likely = first_of_all(likely);
    Arrival winner{never(), kNoToken};
    if (warp_ == 0) run(likely.number, &winner);
    winner = first_of_all(winner);
    for (int block = warp_; block < n_blocks_; block += kDrawWarps) {
      const double earliest = row_.earliest[block];
      if (block != likely.number && earliest < never() && earliest <= winner.time) run(block, &winner);
    }
    return first_of_all(winner).number;
  }

  // Runs the race of the tokens of a block, by a warp.
  __device__ void run(int block, Arrival* winner) const {
    const TokenNoise::Block noise = row_.noise.block(block);
    for (int half = 0; half < 2; ++half) {
      const int token = block * kBlock + half * 32 + lane_;
      const float logit = token < row_.vocabulary ? row_.logits[token] : -infinity();
      if (logit == -infinity() || logit < floor_) continue;
      const float own = weight(logit);
      if (own <= 0 || key(own, token) < kept_ || !may_be_first(noise.least, own, winner->time)) continue;
      const Arrival mine{row_.noise.of(token, noise) / own, token};
      if (mine.before(*winner)) *winner = mine;
    }
  }

  const Row& row_;
  Shared& shared_;
  int n_blocks_, thread_, warp_, lane_;
  float max_ = 0, floor_ = 0;
  uint64_t kept_ = 0;  // Tokens with smaller keys are dropped.
  unsigned long long before_ = 0;
};

// A block takes a row.
__global__ void __launch_bounds__(kDrawThreads) draw_token_kernel(const Row* rows) {
  const Row& row = rows[blockIdx.x];
  const DrawnToken drawn = RowDraw(row, *reinterpret_cast<Shared*>(shared_memory())).draw();
  if (threadIdx.x == 0) *row.drawn = drawn;
}

// Where the lists of a draw are in the staging.
struct Staged {
  size_t biases, seen, forbidden, allowed;
};

template <typename T>
size_t stage(Staging& staging, std::span<const T> values) {
  return staging.add(values.data(), values.size_bytes());
}

Staged stage_draw(Staging& staging, const DeviceSample& draw) {
  Staged staged{};
  staged.biases = staging.add(nullptr, draw.logit_bias.size() * sizeof(Bias));
  auto* bias = reinterpret_cast<Bias*>(staging.at(staged.biases));
  for (const auto& [token, value] : draw.logit_bias) *bias++ = {token, value};
  staged.seen = stage(staging, draw.seen);
  staged.forbidden = stage(staging, draw.forbidden);
  staged.allowed = stage(staging, draw.allowed);
  return staged;
}

Row table_row(const DeviceSample& draw, const std::byte* device, const Staged& staged) {
  Row row{};
  row.logits = draw.logits;
  row.biases = reinterpret_cast<const Bias*>(device + staged.biases);
  row.seen = reinterpret_cast<const SeenToken*>(device + staged.seen);
  row.forbidden = reinterpret_cast<const int32_t*>(device + staged.forbidden);
  if (!draw.allowed.empty()) row.allowed = reinterpret_cast<const uint32_t*>(device + staged.allowed);
  row.vocabulary = static_cast<int32_t>(draw.vocabulary);
  row.n_biases = static_cast<int32_t>(draw.logit_bias.size());
  row.n_seen = static_cast<int32_t>(draw.seen.size());
  row.n_forbidden = static_cast<int32_t>(draw.forbidden.size());
  row.repetition = draw.repetition_penalty;
  row.frequency = draw.frequency_penalty;
  row.presence = draw.presence_penalty;
  row.scale = draw.scale;
  row.min_p_offset = draw.min_p_offset;
  row.top_p = draw.top_p;
  row.top_k = draw.top_k;
  row.greedy = draw.greedy;
  row.noise = draw.noise;
  return row;
}

}  // namespace

void DeviceSamples::start(std::span<DeviceSample* const> draws, CUstream_st* stream) {
  const auto n = static_cast<int64_t>(draws.size());
  int64_t all_blocks = 0;
  int parts = 0;
  staging_.clear();
  std::vector<Staged> staged;
  for (const DeviceSample* draw : draws) {
    if (draw->vocabulary < 1 || draw->vocabulary > DeviceSampler::kMostTokens) {
      throw std::invalid_argument("drawing tokens: expected a vocabulary of 1 to " +
                                  std::to_string(DeviceSampler::kMostTokens) + " tokens, found " +
                                  std::to_string(draw->vocabulary));
    }
    staged.push_back(stage_draw(staging_, *draw));
    const int64_t n_blocks = (draw->vocabulary + kBlock - 1) / kBlock;
    all_blocks += n_blocks;
    parts = std::max(parts, static_cast<int>((n_blocks + kScanBlocks - 1) / kScanBlocks));
  }
  const std::byte* const device = staging_.upload(stream);
  const auto of_blocks = static_cast<size_t>(all_blocks), of_rows = static_cast<size_t>(n);
  std::byte* const scratch =
      scratch_.reserve(of_blocks * (sizeof(double) + sizeof(float)) + of_rows * (sizeof(int32_t) + sizeof(DrawnToken)));
  auto* earliest = reinterpret_cast<double*>(scratch);
  auto* block_max = reinterpret_cast<float*>(earliest + all_blocks);
  auto* const bad = reinterpret_cast<int32_t*>(block_max + all_blocks);
  auto* const drawn = reinterpret_cast<DrawnToken*>(bad + n);
  std::vector<Row> rows;
  for (size_t i = 0; i < draws.size(); ++i) {
    Row& row = rows.emplace_back(table_row(*draws[i], device, staged[i]));
    row.earliest = earliest;
    row.block_max = block_max;
    row.bad = bad + i;
    row.drawn = drawn + i;
    earliest += row.n_blocks();
    block_max += row.n_blocks();
  }
  const Row* const table = table_.send(std::span<const Row>(rows), stream);
  launch(edit_logits_kernel, "edit_logits", n, kThreads, 0, stream, table);
  launch(scan_logits_kernel, "scan_logits", n * parts, kThreads, 0, stream, table, parts);
  launch(draw_token_kernel, "draw_token", n, kDrawThreads, sizeof(Shared), stream, table);
  const size_t bytes = of_rows * sizeof(DrawnToken);
  check(cudaMemcpyAsync(drawn_.reserve(bytes), drawn, bytes, cudaMemcpyDeviceToHost, stream), "copying drawn tokens");
}

void DeviceSamples::take(std::span<DeviceSample* const> draws) const {
  for (size_t i = 0; i < draws.size(); ++i) {
    std::memcpy(&draws[i]->drawn, drawn_.data() + i * sizeof(DrawnToken), sizeof(DrawnToken));
  }
}

}  // namespace smartkv::kernels::cuda

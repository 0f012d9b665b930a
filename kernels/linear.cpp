#include "kernels/linear.h"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/bf16.h"
#include "kernels/cpu_kernels.h"
#include "kernels/linear_format.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_operands(const PackedMatrix& matrix, const LinearInput& input, const LinearOutput& output) {
  const bool gated = is_gated(output.epilogue);
  if (gated && matrix.out_features % (2 * kLanes) != 0) {
    throw std::invalid_argument("linear: a gate expects out_features to be a multiple of 32, found " +
                                std::to_string(matrix.out_features));
  }
  const int64_t width = gated ? matrix.out_features / 2 : matrix.out_features;
  if (input.rows > 1 && (input.x_stride < matrix.in_features || output.stride < width)) {
    throw std::invalid_argument("linear: expected input and output strides of at least " +
                                std::to_string(matrix.in_features) + " and " + std::to_string(width) + ", found " +
                                std::to_string(input.x_stride) + " and " + std::to_string(output.stride));
  }
}

bool is_integer(WeightType type) { return levels_of(type).bits() > 0; }

LinearKernels::Product product_of(const LinearKernels& kernels, const PackedMatrix& matrix) {
  if (matrix.type == WeightType::kF32) return kernels.f32;
  if (matrix.type == WeightType::kBf16) return kernels.bf16;
  return kernels.integers[static_cast<size_t>(matrix.type)][static_cast<size_t>(matrix.minimums)];
}

// How LinearCall::x_sum is computed for a matrix.
struct Sums {
  int64_t per_group;  // Sums for each group of 32 inputs: 1, or 2 for halves.
  float factor;
};

Sums sums_of(const PackedMatrix& matrix) {
  const Scales scales = scales_of(matrix.type, matrix.minimums);
  return {scales_halves(scales) ? 2 : 1,
          has_minimums(scales) ? 1.0f : -static_cast<float>(levels_of(matrix.type).centre)};
}

// Computes the sums of both halves of each group of q [k], times the group's scale and `factor`. sums: [2 k / 32].
void sum_halves(const int8_t* q, const float* scale, int64_t k, float factor, float* sums) {
  constexpr int64_t kHalf = kGroupSize / 2;
  for (int64_t half = 0; half < k / kHalf; ++half) {
    int32_t sum = 0;
    for (int64_t i = 0; i < kHalf; ++i) sum += q[half * kHalf + i];
    sums[half] = factor * scale[half / 2] * static_cast<float>(sum);
  }
}

// Calls f(row, the row's bf16 inputs) for all rows, in tasks of about values_per_task values.
template <typename F>
void for_rows(ThreadPool& pool, const LinearCall& call, int64_t values_per_task, const F& f) {
  const int64_t rows = call.input.rows, rows_per_task = std::max<int64_t>(1, values_per_task / call.k);
  const auto* x = static_cast<const uint16_t*>(call.input.x);
  pool.parallel_for(ceil_div(rows, rows_per_task), [&](int64_t task) {
    const int64_t end = std::min(rows, (task + 1) * rows_per_task);
    for (int64_t row = task * rows_per_task; row < end; ++row) f(row, x + row * call.input.x_stride);
  });
}

void quantize_input(ThreadPool& pool, const LinearKernels& kernels, const PackedMatrix& matrix, LinearCall& call,
                    LinearScratch& scratch) {
  const Sums sums = sums_of(matrix);
  const int64_t rows = call.input.rows;
  const int64_t groups = call.k / kGroupSize, row_sums = sums.per_group * groups;
  scratch.x.grow(static_cast<size_t>(rows * (call.k + (groups + row_sums) * static_cast<int64_t>(sizeof(float)))));
  auto* scale = scratch.x.as<float>();
  float* sum = scale + rows * groups;
  auto* q = reinterpret_cast<int8_t*>(sum + rows * row_sums);
  for_rows(pool, call, 16384, [&](int64_t row, const uint16_t* x) {
    float* const s = sum + row * row_sums;
    if (!matrix.input_order.empty()) {
      thread_local std::vector<uint16_t> ordered;
      ordered.resize(static_cast<size_t>(call.k));
      for (size_t i = 0; i < ordered.size(); ++i) ordered[i] = x[matrix.input_order[i]];
      x = ordered.data();
    }
    kernels.quantize(x, call.k, q + row * call.k, scale + row * groups, s);
    if (sums.per_group == 2) {
      sum_halves(q + row * call.k, scale + row * groups, call.k, sums.factor, s);
    } else if (sums.factor != 1.0f) {
      for (int64_t g = 0; g < groups; ++g) s[g] *= sums.factor;
    }
  });
  call.x_int8 = q;
  call.x_scale = scale;
  call.x_sum = sum;
}

void widen_input(ThreadPool& pool, const LinearKernels& kernels, LinearCall& call, LinearScratch& scratch) {
  const int64_t rows = call.input.rows;
  // Rows that lie a multiple of a page apart would share few lines of the first-level cache.
  constexpr int64_t kGap = 16;
  const int64_t stride = (call.k + kGap - 1) / kGap * kGap + kGap;
  scratch.x.grow(static_cast<size_t>(rows * stride) * sizeof(float));
  auto* const wide = scratch.x.as<float>();
  for_rows(pool, call, 65536, [&](int64_t row, const uint16_t* x) {
    float* const out = wide + row * stride;
    if (kernels.widen != nullptr) return kernels.widen(x, call.k, out);
    for (int64_t k = 0; k < call.k; ++k) out[k] = from_bf16(x[k]);
  });
  call.x_f32 = wide;
  call.x_f32_stride = stride;
}

// How a product is cut into tasks: `columns` parts of the pairs of lane groups by `rows` blocks of rows. A pair keeps
// gate and up together.
struct Split {
  int64_t columns = 1;
  int64_t rows = 1;
};

Split split(const LinearCall& call, int64_t pairs, int threads) {
  // Rough costs of a task on one core. They choose the size of tasks, not their results.
  constexpr double kBytesPerSecond = 20e9;
  constexpr double kProductsPerSecond = 200e9;
  constexpr double kTaskSeconds = 10e-6;
  constexpr int64_t kRowBytes = 512 << 10;  // The x of a block of rows stays in the second-level cache.
  constexpr int64_t kTasksPerThread = 8;
  Split result;
  result.rows = std::max<int64_t>(1, ceil_div(call.input.rows * call.k * 2, kRowBytes));
  const double bytes = static_cast<double>(pairs * 2 * call.lane_group_bytes);
  const double products = static_cast<double>(call.input.rows) * static_cast<double>(call.k * pairs * 2 * kLanes);
  const double seconds = std::max(bytes / kBytesPerSecond, products / kProductsPerSecond);
  const auto wanted = static_cast<int64_t>(seconds / kTaskSeconds / static_cast<double>(result.rows));
  // A multiple of the number of threads, so that no thread is left alone with the last task.
  const int64_t even = wanted / threads * threads;
  result.columns = std::clamp<int64_t>(even, 1, kTasksPerThread * threads);
  if (wanted > 0 && wanted < threads) result.columns = wanted;
  result.columns = std::min(result.columns, pairs);
  return result;
}

// Computes the tile of encoded weights: expands two lane groups at a time, which kernels.f32 multiplies.
void multiply_encoded(const LinearKernels& kernels, const EncodedRows& rows, const LinearCall& call,
                      const LinearTile& tile) {
  constexpr int64_t kPair = 2;
  thread_local std::vector<float> expanded;
  thread_local AlignedBuffer lanes;
  const int64_t lane_group = call.k * kLanes;
  expanded.resize(static_cast<size_t>(lane_group));
  lanes.grow(static_cast<size_t>(kPair * lane_group) * sizeof(float));
  for (int64_t first = tile.group_begin; first < tile.group_end; first += kPair) {
    const int64_t groups = std::min(kPair, tile.group_end - first), row = first * kLanes;
    for (int64_t g = 0; g < groups; ++g) {
      std::fill(expanded.begin(), expanded.end(), 0.0f);
      const int64_t begin = (first + g) * kLanes, count = std::min(kLanes, call.n - begin);
      for (int64_t lane = 0; lane < count; ++lane) rows.expand(begin + lane, expanded.data() + lane * call.k);
      float* const to = lanes.as<float>() + g * lane_group;
      for (int64_t k = 0; k < call.k; ++k) {
        for (int64_t lane = 0; lane < kLanes; ++lane) to[k * kLanes + lane] = expanded[lane * call.k + k];
      }
    }
    // The call of a matrix that begins with these lane groups.
    LinearCall part = call;
    part.weights = lanes.data();
    part.lane_group_bytes = lane_group * static_cast<int64_t>(sizeof(float));
    part.n = call.n - row;
    if (call.row_factors != nullptr) part.row_factors += row;
    if (call.output.bias != nullptr) part.output.bias += row;
    const bool gated = is_gated(call.output.epilogue);
    const int64_t element = gated && call.gated_bf16 ? 2 : 4;
    part.output.out = static_cast<std::byte*>(call.output.out) + (gated ? row / 2 : row) * element;
    kernels.f32(part, {tile.row_begin, tile.row_end, 0, groups});
  }
}

}  // namespace

void linear(ThreadPool& pool, const PackedMatrix& matrix, const LinearInput& input, const LinearOutput& output,
            LinearScratch& scratch) {
  if (input.rows == 0) return;
  check_operands(matrix, input, output);
  const LinearKernels& kernels = *cpu_kernels().linear;
  const auto product = product_of(kernels, matrix);
  const int64_t groups = ceil_div(matrix.out_features, kLanes);
  const bool encoded = matrix.type == WeightType::kEncoded;
  LinearCall call;
  call.weights = matrix.data.data();
  call.lane_group_bytes = matrix.bytes() / groups;
  call.n = matrix.out_features;
  call.k = matrix.in_features;
  call.input = input;
  call.output = output;
  call.row_factors = matrix.row_factors.empty() ? nullptr : matrix.row_factors.data();
  call.gated_bf16 = matrix.type != WeightType::kF32;
  if (is_integer(matrix.type)) quantize_input(pool, kernels, matrix, call, scratch);
  if (encoded || (kernels.widen != nullptr && matrix.type == WeightType::kBf16)) {
    widen_input(pool, kernels, call, scratch);
  }
  if (encoded) {
    call.input.x = call.x_f32;
    call.input.x_stride = call.x_f32_stride;
  }
  if (matrix.type == WeightType::kF32) {
    call.x_f32 = static_cast<const float*>(input.x);
    call.x_f32_stride = input.x_stride;
  }

  const int64_t pairs = ceil_div(groups, 2);
  Split cut = split(call, pairs, pool.size());
  if (encoded) cut.rows = 1;  // Each block of rows would expand the weights again.
  pool.parallel_for(cut.rows * cut.columns, [&](int64_t task) {
    const int64_t row = task / cut.columns;
    const int64_t column = task % cut.columns;
    LinearTile tile;
    tile.row_begin = input.rows * row / cut.rows;
    tile.row_end = input.rows * (row + 1) / cut.rows;
    tile.group_begin = pairs * column / cut.columns * 2;
    tile.group_end = std::min(groups, pairs * (column + 1) / cut.columns * 2);
    encoded ? multiply_encoded(kernels, *matrix.encoded, call, tile) : product(call, tile);
  });
}

}  // namespace smartkv::kernels

#include "kernels/linear.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>
#include <string>

#include "kernels/bf16.h"
#include "kernels/cpu_kernels.h"
#include "kernels/linear_format.h"
#include "kernels/thread_pool.h"

namespace smartkv::kernels {
namespace {

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

void check_operands(const LinearGroup& group) {
  const PackedMatrix& matrix = *group.matrix;
  const LinearInput& input = group.input;
  const LinearOutput& output = group.output;
  const bool gated = is_gated(output.epilogue);
  const int64_t unit = gated ? 2 * kLanes : kLanes;
  if (gated && group.outputs % unit != 0) {
    throw std::invalid_argument("linear: a gate expects out_features to be a multiple of 32, found " +
                                std::to_string(group.outputs));
  }
  if (group.first_output % unit != 0 || group.first_output < 0 ||
      group.outputs > matrix.out_features - group.first_output) {
    throw std::invalid_argument("linear: expected rows of [0, " + std::to_string(matrix.out_features) +
                                ") from a multiple of " + std::to_string(unit) + ", found " +
                                std::to_string(group.outputs) + " from " + std::to_string(group.first_output));
  }
  const int64_t width = gated ? group.outputs / 2 : group.outputs;
  if (input.rows > 1 && (input.x_stride < matrix.in_features || output.stride < width)) {
    throw std::invalid_argument("linear: expected input and output strides of at least " +
                                std::to_string(matrix.in_features) + " and " + std::to_string(width) + ", found " +
                                std::to_string(input.x_stride) + " and " + std::to_string(output.stride));
  }
}

bool is_integer(WeightType type) { return levels_of(type).bits() > 0; }
bool is_encoded(const PackedMatrix& matrix) { return matrix.type == WeightType::kEncoded; }

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

// The rows of x in the form that the kernel of a matrix reads.
class Rows {
 public:
  enum class Form : uint8_t {
    kAsGiven,   // the caller's
    kCopied,    // the caller's, in another order
    kWidened,   // f32
    kQuantized  // int8 with scales and sums
  };

  Rows(const LinearKernels& kernels, const PackedMatrix& matrix, int64_t rows, bool in_place)
      : kernels_(kernels), matrix_(matrix), rows_(rows), k_(matrix.in_features) {
    if (is_integer(matrix.type)) {
      form_ = Form::kQuantized;
    } else if (is_encoded(matrix) || (kernels.widen != nullptr && matrix.type == WeightType::kBf16)) {
      form_ = Form::kWidened;
    } else {
      form_ = in_place ? Form::kAsGiven : Form::kCopied;
    }
    // Rows that lie a multiple of a page apart would share few lines of the first-level cache.
    constexpr int64_t kGap = 16;
    stride_ = form_ == Form::kWidened ? (k_ + kGap - 1) / kGap * kGap + kGap : k_;
  }

  Form form() const { return form_; }
  int64_t bytes() const {
    const auto floats = static_cast<int64_t>(sizeof(float));
    switch (form_) {
      case Form::kAsGiven: return 0;
      case Form::kCopied: return rows_ * k_ * element_bytes();
      case Form::kWidened: return rows_ * stride_ * floats;
      default: return rows_ * (k_ + (groups() + row_sums()) * floats);
    }
  }
  // Places the rows in memory of bytes() bytes. `call` then reads them.
  void place(std::byte* memory, LinearCall& call) {
    scale_ = reinterpret_cast<float*>(memory);
    sum_ = scale_ + rows_ * groups();
    q_ = reinterpret_cast<int8_t*>(sum_ + rows_ * row_sums());
    floats_ = reinterpret_cast<float*>(memory);
    if (form_ == Form::kQuantized) {
      call.x_int8 = q_;
      call.x_scale = scale_;
      call.x_sum = sum_;
      return;
    }
    if (form_ != Form::kAsGiven) {
      call.input.x = memory;
      call.input.x_stride = stride_;
    }
    call.x_f32 = static_cast<const float*>(call.input.x);
    call.x_f32_stride = call.input.x_stride;
  }

  // Writes row i. x: the row as the caller has it.
  void write(int64_t i, const void* x) const {
    if (form_ == Form::kCopied) {
      std::memcpy(reinterpret_cast<std::byte*>(floats_) + i * k_ * element_bytes(), x,
                  static_cast<size_t>(k_ * element_bytes()));
    } else if (form_ == Form::kWidened) {
      widen(static_cast<const uint16_t*>(x), floats_ + i * stride_);
    } else if (form_ == Form::kQuantized) {
      quantize(static_cast<const uint16_t*>(x), i);
    }
  }
  // Writes row i as row `from` of other rows. Returns false if they have another form.
  bool copy(int64_t i, const Rows& other, int64_t from) const {
    if (form_ != Form::kQuantized || matrix_.type != other.matrix_.type || matrix_.minimums != other.matrix_.minimums ||
        !matrix_.input_order.empty() || !other.matrix_.input_order.empty()) {
      return false;
    }
    std::copy_n(other.q_ + from * k_, k_, q_ + i * k_);
    std::copy_n(other.scale_ + from * groups(), groups(), scale_ + i * groups());
    std::copy_n(other.sum_ + from * row_sums(), row_sums(), sum_ + i * row_sums());
    return true;
  }

 private:
  int64_t element_bytes() const { return matrix_.type == WeightType::kF32 ? 4 : 2; }
  int64_t groups() const { return k_ / kGroupSize; }
  int64_t row_sums() const { return sums_of(matrix_).per_group * groups(); }

  void widen(const uint16_t* x, float* out) const {
    if (kernels_.widen != nullptr) return kernels_.widen(x, k_, out);
    for (int64_t k = 0; k < k_; ++k) out[k] = from_bf16(x[k]);
  }
  void quantize(const uint16_t* x, int64_t row) const {
    const Sums sums = sums_of(matrix_);
    float *const scale = scale_ + row * groups(), *const sum = sum_ + row * row_sums();
    int8_t* const q = q_ + row * k_;
    if (!matrix_.input_order.empty()) {
      thread_local std::vector<uint16_t> ordered;
      ordered.resize(static_cast<size_t>(k_));
      for (size_t i = 0; i < ordered.size(); ++i) ordered[i] = x[matrix_.input_order[i]];
      x = ordered.data();
    }
    kernels_.quantize(x, k_, q, scale, sum);
    if (sums.per_group == 2) {
      sum_halves(q, scale, k_, sums.factor, sum);
    } else if (sums.factor != 1.0f) {
      for (int64_t g = 0; g < groups(); ++g) sum[g] *= sums.factor;
    }
  }

  const LinearKernels& kernels_;
  const PackedMatrix& matrix_;
  int64_t rows_, k_;
  Form form_;
  int64_t stride_;
  // In the memory of place(): quantized rows, or others.
  float *scale_ = nullptr, *sum_ = nullptr;
  int8_t* q_ = nullptr;
  float* floats_ = nullptr;
};

// How a product is cut into tasks: `columns` parts of the pairs of lane groups by `rows` blocks of rows. A pair keeps
// gate and up together.
struct Split {
  int64_t columns = 1;
  int64_t rows = 1;
};

// Rough costs on one core. They choose the size of tasks, not their results.
constexpr double kTaskSeconds = 10e-6;
constexpr int64_t kTasksPerThread = 8;

double product_seconds(const LinearCall& call, int64_t pairs) {
  constexpr double kBytesPerSecond = 20e9;
  constexpr double kProductsPerSecond = 200e9;
  const double bytes = static_cast<double>(pairs * 2 * call.lane_group_bytes);
  const double products = static_cast<double>(call.input.rows) * static_cast<double>(call.k * pairs * 2 * kLanes);
  return std::max(bytes / kBytesPerSecond, products / kProductsPerSecond);
}

// task_seconds: how long a task should take. alone: the product is the only one.
Split split(const LinearCall& call, int64_t pairs, int threads, double task_seconds, bool alone) {
  constexpr int64_t kRowBytes = 512 << 10;  // The x of a block of rows stays in the second-level cache.
  Split result;
  result.rows = std::max<int64_t>(1, ceil_div(call.input.rows * call.k * 2, kRowBytes));
  const double seconds = product_seconds(call, pairs);
  const auto wanted = static_cast<int64_t>(seconds / task_seconds / static_cast<double>(result.rows));
  // A multiple of the number of threads, so that no thread is left alone with the last task.
  const int64_t even = alone ? wanted / threads * threads : wanted;
  result.columns = std::clamp<int64_t>(even, 1, kTasksPerThread * threads);
  if (wanted > 0 && wanted < threads) result.columns = wanted;
  result.columns = std::min(result.columns, pairs);
  return result;
}

// Computes the tile of encoded weights, which begin at row first_output: expands two lane groups at a time, which
// kernels.f32 multiplies.
void multiply_encoded(const LinearKernels& kernels, const EncodedRows& rows, int64_t first_output,
                      const LinearCall& call, const LinearTile& tile) {
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
      for (int64_t lane = 0; lane < count; ++lane)
        rows.expand(first_output + begin + lane, expanded.data() + lane * call.k);
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

// One product of a call of linear_groups().
struct GroupProduct {
  GroupProduct(const LinearKernels& kernels, const LinearGroup& group, bool in_place)
      : matrix(*group.matrix),
        multiply(product_of(kernels, matrix)),
        first_output(group.first_output),
        lane_groups(ceil_div(group.outputs, kLanes)),
        rows(kernels, matrix, group.input.rows, in_place) {
    call.lane_group_bytes = matrix.bytes() / ceil_div(matrix.out_features, kLanes);
    call.weights = matrix.data.data() + first_output / kLanes * call.lane_group_bytes;
    call.n = group.outputs;
    call.k = matrix.in_features;
    call.input = group.input;
    call.output = group.output;
    call.row_factors = matrix.row_factors.empty() ? nullptr : matrix.row_factors.data() + first_output;
    call.gated_bf16 = matrix.type != WeightType::kF32;
  }

  const void* given_row(int64_t row) const {
    const int64_t bytes = matrix.type == WeightType::kF32 ? 4 : 2;
    return static_cast<const std::byte*>(given.x) + row * given.x_stride * bytes;
  }
  int64_t pairs() const { return ceil_div(lane_groups, 2); }
  void run(const LinearKernels& kernels, int64_t task) const {
    const int64_t row = task / cut.columns, column = task % cut.columns;
    LinearTile tile;
    tile.row_begin = call.input.rows * row / cut.rows;
    tile.row_end = call.input.rows * (row + 1) / cut.rows;
    tile.group_begin = pairs() * column / cut.columns * 2;
    tile.group_end = std::min(lane_groups, pairs() * (column + 1) / cut.columns * 2);
    is_encoded(matrix) ? multiply_encoded(kernels, *matrix.encoded, first_output, call, tile) : multiply(call, tile);
  }

  const PackedMatrix& matrix;
  LinearKernels::Product multiply;
  int64_t first_output, lane_groups;
  Rows rows;
  LinearCall call;
  LinearInput given;  // The caller's input.
  Split cut;
  int64_t first_row = 0;   // The rows of the products before this one.
  int64_t first_task = 0;  // The tasks of the products before this one.
};

// Returns the product that an item of all items belongs to. first: GroupProduct::first_row or first_task.
const GroupProduct& product_at(const std::vector<GroupProduct>& products, int64_t item, int64_t GroupProduct::*first) {
  const auto after = std::ranges::upper_bound(products, item, {}, first);
  return *(after - 1);
}

// Writes the rows of all products in the form that their kernels read.
void write_rows(ThreadPool& pool, const std::vector<GroupProduct>& products, std::span<const LinearPlace> places,
                int64_t inputs) {
  const int64_t values_per_task = products.front().rows.form() == Rows::Form::kQuantized ? 16384 : 65536;
  const auto as_given = [](const GroupProduct& product) { return product.rows.form() == Rows::Form::kAsGiven; };
  if (std::ranges::all_of(products, as_given)) return;
  const int64_t each = places.empty() ? 1 : static_cast<int64_t>(places.size()) / inputs;
  const int64_t items = places.empty() ? products.back().first_row + products.back().call.input.rows : inputs;
  const int64_t items_per_task = std::max<int64_t>(1, values_per_task / (each * products.front().call.k));
  pool.parallel_for(ceil_div(items, items_per_task), [&](int64_t task) {
    for (int64_t item = task * items_per_task; item < std::min(items, (task + 1) * items_per_task); ++item) {
      if (places.empty()) {
        const GroupProduct& product = product_at(products, item, &GroupProduct::first_row);
        const int64_t row = item - product.first_row;
        product.rows.write(row, product.given_row(row));
        continue;
      }
      const LinearPlace* const of_item = places.data() + item * each;
      for (int64_t i = 0; i < each; ++i) {
        const GroupProduct& product = products[static_cast<size_t>(of_item[i].group)];
        const GroupProduct& first = products[static_cast<size_t>(of_item[0].group)];
        if (i > 0 && product.rows.copy(of_item[i].row, first.rows, of_item[0].row)) continue;
        product.rows.write(of_item[i].row, product.given_row(item));
      }
    }
  });
}

}  // namespace

void linear_groups(ThreadPool& pool, std::span<const LinearGroup> groups, std::span<const LinearPlace> places,
                   int64_t inputs, LinearScratch& scratch) {
  const LinearKernels& kernels = *cpu_kernels().linear;
  thread_local std::vector<GroupProduct> of_thread;
  std::vector<GroupProduct>& products = of_thread;  // The name of a thread_local would be another in the tasks.
  products.clear();
  constexpr size_t kLine = 64;
  size_t bytes = 0;
  double seconds = 0;
  int64_t rows = 0;
  for (const LinearGroup& group : groups) {
    check_operands(group);
    GroupProduct& product = products.emplace_back(kernels, group, places.empty());
    product.given = group.input;
    product.first_row = rows;
    rows += group.input.rows;
    bytes += (static_cast<size_t>(product.rows.bytes()) + kLine - 1) / kLine * kLine;
    seconds += product_seconds(product.call, product.pairs());
  }
  if (rows == 0) return;
  scratch.x.grow(bytes);
  bytes = 0;
  int64_t tasks = 0;
  const bool alone = groups.size() == 1;
  const double task_seconds = alone ? kTaskSeconds : std::max(kTaskSeconds, seconds / (kTasksPerThread * pool.size()));
  for (GroupProduct& product : products) {
    product.rows.place(scratch.x.data() + bytes, product.call);
    bytes += (static_cast<size_t>(product.rows.bytes()) + kLine - 1) / kLine * kLine;
    product.cut = split(product.call, product.pairs(), pool.size(), task_seconds, alone);
    if (is_encoded(product.matrix)) product.cut.rows = 1;  // Each block of rows would expand the weights again.
    product.first_task = tasks;
    if (product.call.input.rows > 0) tasks += product.cut.rows * product.cut.columns;
  }
  write_rows(pool, products, places, inputs);
  pool.parallel_for(tasks, [&](int64_t task) {
    const GroupProduct& product = product_at(products, task, &GroupProduct::first_task);
    product.run(kernels, task - product.first_task);
  });
}

std::vector<std::span<const std::byte>> PackedMatrix::memory() const {
  if (encoded != nullptr) return encoded->memory();
  return {{data.data(), data.size()}};
}

void linear(ThreadPool& pool, const PackedMatrix& matrix, const LinearInput& input, const LinearOutput& output,
            LinearScratch& scratch) {
  const LinearGroup group{&matrix, 0, matrix.out_features, input, output};
  linear_groups(pool, {&group, 1}, {}, 0, scratch);
}

}  // namespace smartkv::kernels

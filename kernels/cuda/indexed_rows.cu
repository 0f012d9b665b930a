#include "kernels/cuda/indexed_rows.h"

#include "kernels/indexed_rows.h"

namespace smartkv::kernels::cuda {
namespace {

// Encodes K or V of a token, by a warp: the codes of its differences from the mean, and their step. The operations are
// those of kernels/indexed_rows.cpp, one by one.
template <typename ValueAt>
__device__ void encode_row(const ValueAt& value_at, const float* mean, int head_dim, int bits, unsigned char* codes,
                           float* step) {
  constexpr int kPairs = 256 / 64;  // Pairs of a lane.
  const int lane = static_cast<int>(threadIdx.x % 32);
  const float centre = static_cast<float>((1 << bits) - 1) / 2;
  float difference[kPairs][2] = {}, most = 0.0f;
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    for (int e = 0; e < 2; ++e) {
      const int d = 64 * i + 2 * lane + e;
      if (d < head_dim) difference[i][e] = __fsub_rn(value_at(d), mean[d]);
      most = fmaxf(most, fabsf(difference[i][e]));
    }
  }
  most = max_of_warp(most);
  const float inverse = most > 0 ? __fdiv_rn(centre, most) : 0.0f;
  const auto code = [&](float x) {
    const float place = __fadd_rn(__fmul_rn(x, inverse), centre);  // NaN becomes 0
    return static_cast<unsigned>(roundf(fminf(place > 0 ? place : 0.0f, 2 * centre)));
  };
#pragma unroll
  for (int i = 0; i < kPairs; ++i) {
    const int d = 64 * i + 2 * lane;
    if (d >= head_dim) continue;
    const unsigned first = code(difference[i][0]), second = code(difference[i][1]);
    if (bits == 8) {
      *reinterpret_cast<uint16_t*>(codes + d) = static_cast<uint16_t>(first | second << 8);
    } else {
      codes[d / 2] = static_cast<unsigned char>(first | second << 4);
    }
  }
  if (lane == 0) *step = __fdiv_rn(most, centre);
}

// A block takes a KV head, and its warps take K or V of a token in turn. Shared memory: the means, f32 [2][head_dim].
__global__ void __launch_bounds__(kThreads) encode_rows_kernel(const RowEncoding* jobs, int head_dim) {
  const RowEncoding& job = jobs[blockIdx.x];
  const auto thread = static_cast<int>(threadIdx.x);
  auto* const means = reinterpret_cast<float*>(shared_memory());
  for (int i = thread; i < 2 * head_dim; i += kThreads) {
    float mean = 0.0f;
    for (int token = 0; token < kPage; ++token) {
      const float x = i < head_dim ? job.from.k_at(head_dim, token, i) : job.from.v_at(head_dim, token, i - head_dim);
      mean = __fadd_rn(mean, __fmul_rn(x, 1.0f / kPage));
    }
    const uint32_t rounded = pack_bf16(mean, 0.0f);
    means[i] = low_bf16(rounded);
    reinterpret_cast<uint16_t*>(job.rows + job.means)[i] = static_cast<uint16_t>(rounded);
  }
  __syncthreads();
  for (int i = thread / 32; i < 2 * kPage; i += kWarps) {
    const int token = i / 2, side = i % 2;
    const auto value_at = [&](int d) {
      return side == 0 ? job.from.k_at(head_dim, token, d) : job.from.v_at(head_dim, token, d);
    };
    unsigned char* const row = job.rows + token * job.row_bytes;
    if (job.bits == 0) {
      auto* const to = reinterpret_cast<uint32_t*>(row + side * 2 * head_dim);
      for (int d = 2 * (thread % 32); d < head_dim; d += 64) to[d / 2] = pack_bf16(value_at(d), value_at(d + 1));
      continue;
    }
    const int bytes = head_dim * job.bits / 8;
    encode_row(value_at, means + side * head_dim, head_dim, job.bits, row + side * bytes,
               reinterpret_cast<float*>(row + 2 * bytes) + side);
  }
}

}  // namespace

RowEncoding row_encoding(const HeadValues& from, int64_t head_dim, int bits, void* rows) {
  return {from, static_cast<unsigned char*>(rows), bits,
          static_cast<int32_t>(kernels::row_bytes(KvType::kBf16, head_dim, bits)),
          static_cast<int32_t>(means_offset(KvType::kBf16, head_dim, bits))};
}

void encode_rows(int64_t head_dim, std::span<const RowEncoding> jobs, UploadRing& tables, cudaStream_t stream) {
  const size_t shared_bytes = static_cast<size_t>(2 * head_dim) * sizeof(float);
  launch(encode_rows_kernel, "encode_rows", static_cast<int64_t>(jobs.size()), kThreads, shared_bytes, stream,
         tables.send(jobs, stream), static_cast<int>(head_dim));
}

}  // namespace smartkv::kernels::cuda

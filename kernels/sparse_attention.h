// Attention over indexed pages (kernels/attention.h). Each KV head of each query uses the index to choose which tokens
// it reads. Their rows are gathered into dense pages, and attention runs over these and the other segments. A query's
// choice, and so its result, depends on its own segments only, bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/rounded.h"

namespace smartkv::kernels {

// Promises are compared in steps of 1/16 octave, from 64 (above kMaxBlockRows) down to 2^-26. Smaller ones do not
// show in the sum.
constexpr int kPromiseSteps = 512;
constexpr uint32_t kMostPromise = 0x42800000;  // The bits of 64.0f.
constexpr int kPromiseStepBits = 19;

// Returns the step of a promise, given its bits as f32. A promise above kMostPromise is in the first step. 0 and NaN
// are in the last.
SMARTKV_HOST_DEVICE constexpr int promise_step(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f800000;
  if (bits > kMostPromise && bits <= kInfinity) return 0;
  const uint32_t step = (kMostPromise - bits) >> kPromiseStepBits;
  return step < static_cast<uint32_t>(kPromiseSteps) ? static_cast<int>(step) : kPromiseSteps - 1;
}

// Returns the bound of the first `steps` steps: only promises in these steps, or above kMostPromise, are greater.
// REQUIRES: `steps` is in [0, kPromiseSteps).
constexpr float promise_below(int steps) {
  return std::bit_cast<float>(kMostPromise - (static_cast<uint32_t>(steps) << kPromiseStepBits));
}

// Computes the tasks that have indexed pages. Returns the others in order: `tasks` itself, or a span of scratch.plain.
std::span<const AttentionTask> sparse_attention(ThreadPool& pool, const AttentionShape& shape,
                                                std::span<const AttentionTask> tasks, AttentionScratch& scratch);
// Does the same for attention_mass(), with scratch.plain_mass. A token that is not read has mass 0.
std::span<const AttentionMassTask> sparse_attention_mass(ThreadPool& pool, const AttentionShape& shape,
                                                         std::span<const AttentionMassTask> tasks,
                                                         AttentionScratch& scratch);

}  // namespace smartkv::kernels

// Attention over indexed pages (kernels/attention.h): each KV head of each query chooses by the index what it reads; that is
// gathered into dense pages, and attention runs over these and the other segments. What a query reads, and so its result,
// depends on its own segments alone, bit for bit.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/rounded.h"

namespace smartkv::kernels {

// Promises are compared in steps of 1/16 octave, from kMaxBlockRows and more down to 2^-26: below that nothing shows in the sum.
constexpr int kPromiseSteps = 512;
constexpr uint32_t kMostPromise = 0x42800000;  // 64.0f, by its bits
constexpr int kPromiseStepBits = 19;

// The step of a promise, by its bits in f32. What is larger than the most: the first; 0 and NaN: the last.
SMARTKV_HOST_DEVICE constexpr int promise_step(uint32_t bits) {
  constexpr uint32_t kInfinity = 0x7f800000;
  if (bits > kMostPromise && bits <= kInfinity) return 0;
  const uint32_t step = (kMostPromise - bits) >> kPromiseStepBits;
  return step < static_cast<uint32_t>(kPromiseSteps) ? static_cast<int>(step) : kPromiseSteps - 1;
}

// What promises of the first `steps` steps, 0 to kPromiseSteps - 1, are greater than, and those beyond the most, and no others.
constexpr float promise_below(int steps) {
  return std::bit_cast<float>(kMostPromise - (static_cast<uint32_t>(steps) << kPromiseStepBits));
}

// Computes the tasks that have indexed pages. Returns the others, in order: `tasks` itself, or in scratch.plain.
std::span<const AttentionTask> sparse_attention(ThreadPool& pool, const AttentionShape& shape,
                                                std::span<const AttentionTask> tasks, AttentionScratch& scratch);
// The same for attention_mass(), with scratch.plain_mass: a token that is not read has mass 0.
std::span<const AttentionMassTask> sparse_attention_mass(ThreadPool& pool, const AttentionShape& shape,
                                                         std::span<const AttentionMassTask> tasks, AttentionScratch& scratch);

}  // namespace smartkv::kernels

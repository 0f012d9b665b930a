// Attention over indexed pages (kernels/attention.h): each KV head of each query chooses by the index what it reads; that is
// gathered into dense pages, and attention runs over these and the other segments. What a query reads, and so its result,
// depends on its own segments alone, bit for bit.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/attention.h"
#include "kernels/rounded.h"

namespace smartkv::kernels {

// Promises are compared in steps of 1/16 octave, from kMaxBlockRows and more down to 2^-26: below that nothing shows in the sum.
constexpr int kPromiseSteps = 512;

// The step of a promise, by its bits in f32. 0, NaN and what is larger: the last.
SMARTKV_HOST_DEVICE constexpr int promise_step(uint32_t bits) {
  constexpr uint32_t kMost = 0x42800000;  // 64.0f
  const uint32_t step = (kMost - bits) >> 19;
  return step < static_cast<uint32_t>(kPromiseSteps) ? static_cast<int>(step) : kPromiseSteps - 1;
}

// Computes the tasks that have indexed pages. Returns the others, in order: `tasks` itself, or in scratch.plain.
std::span<const AttentionTask> sparse_attention(ThreadPool& pool, const AttentionShape& shape,
                                                std::span<const AttentionTask> tasks, AttentionScratch& scratch);
// The same for attention_mass(), with scratch.plain_mass: a token that is not read has mass 0.
std::span<const AttentionMassTask> sparse_attention_mass(ThreadPool& pool, const AttentionShape& shape,
                                                         std::span<const AttentionMassTask> tasks, AttentionScratch& scratch);

}  // namespace smartkv::kernels

// Attention over indexed pages (kernels/attention.h): each KV head of each query chooses by the index what it reads; that is
// gathered into dense pages, and attention runs over these and the other segments. What a query reads, and so its result,
// depends on its own segments alone, bit for bit.
#pragma once

#include <span>

#include "kernels/attention.h"

namespace smartkv::kernels {

// Computes the tasks that have indexed pages. Returns the others, in order: `tasks` itself, or in scratch.plain.
std::span<const AttentionTask> sparse_attention(ThreadPool& pool, const AttentionShape& shape,
                                                std::span<const AttentionTask> tasks, AttentionScratch& scratch);
// The same for attention_mass(), with scratch.plain_mass: a token that is not read has mass 0.
std::span<const AttentionMassTask> sparse_attention_mass(ThreadPool& pool, const AttentionShape& shape,
                                                         std::span<const AttentionMassTask> tasks, AttentionScratch& scratch);

}  // namespace smartkv::kernels

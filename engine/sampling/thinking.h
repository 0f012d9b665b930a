// Follows the thinking of an answer (engine.h, Thinking) token by token: counts its tokens, ends it when its budget is
// spent, and begins the grammar of the answer after it.
#pragma once

#include <memory>
#include <span>

#include "engine/engine.h"
#include "engine/sampling/constraint.h"

namespace smartkv {

// Returns the constraint of an answer that may think before it matches `answer`, which is null if any text is allowed.
//  - An answer with a grammar may begin with thinking.opening or with the grammar.
//  - `ends`, sorted, are the tokens that end an answer. They are not allowed within the thinking if a grammar follows.
//  - Up to kMostRollback tokens can be rolled back.
// `tokenizer` must outlive the result.
std::unique_ptr<Constraint> constrain_thinking(const Thinking& thinking, const Tokenizer& tokenizer,
                                               std::span<const TokenId> ends, std::unique_ptr<Constraint> answer);

constexpr size_t kMostRollback = 64;  // more than a round of speculative decoding drafts

}  // namespace smartkv

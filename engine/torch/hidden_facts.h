// Text with facts that are told early and asked for late. Plain prose hardly ever asks for a number that it told a
// thousand tokens ago, so gates that only read prose do not learn to keep one.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// The window, of as many tokens as before, its end cut to make room: `count` facts, each with a number, a word or a name that
// nothing else gives away, stand at ends of sentences in its first half, some in two statements; they are asked for and answered
// in another order at its end. Lines, sentences of prose, what people say, lists and tables, assignments. `smartkv eval recall`
// stays unseen: no three words in a row and no name or listed word is in both (tests/engine/torch/hidden_facts_test.cpp).
// The same for the same seed. Throws std::invalid_argument when they do not fit.
std::vector<int64_t> hide_facts(const Tokenizer& tokenizer, const std::vector<int64_t>& window, int64_t count,
                                uint64_t seed);

}  // namespace smartkv

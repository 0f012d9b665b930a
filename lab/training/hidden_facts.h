// Makes training text in which facts are stated early and asked for late. Plain prose hardly ever asks for a number
// that it stated a thousand tokens before, so gates that only see prose do not learn to keep one.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/text/tokenizer.h"

namespace smartkv {

// Returns the window with `count` facts hidden in it. The end of the window is cut, so the number of tokens stays the
// same.
//  - Each fact contains a number, a word or a name that the rest of the text does not reveal. It is stated after a
//    sentence in the first half, some facts in two statements.
//  - At the end of the window the facts are asked for and answered, in another order.
//  - The forms are separate lines, sentences of prose, direct speech, lists and tables, and assignments.
//  - The text shares no three consecutive words, no name and no listed word with `smartkv eval recall`, which stays
//    unseen (tests/lab/training/hidden_facts_test.cpp).
// Equal seeds give equal results. Throws std::invalid_argument if the facts do not fit.
std::vector<int64_t> hide_facts(const Tokenizer& tokenizer, const std::vector<int64_t>& window, int64_t count,
                                uint64_t seed);

}  // namespace smartkv

// Checks that a draft model and the model that it drafts for share a vocabulary.
#pragma once

#include <cstdint>

#include "engine/text/tokenizer.h"

namespace smartkv {

// The vocabulary of a model. The caller owns the tokenizer.
struct DraftVocabulary {
  const Tokenizer* tokenizer = nullptr;
  int64_t outputs = 0;  // rows of embedding and head, padding included
};

// Throws ModelError, naming the first token that differs, unless each id stands for the same token in both
// vocabularies. Drafts are verified by id, so equal texts with different ids would not do.
//
// One vocabulary may continue with padding where the other ends, and so may its outputs. Padding is an id without a
// token, or with a token named "[PAD", digits and "]". Converters to GGUF write such names for rows of the embedding
// that no token uses.
void check_draft_vocabulary(const DraftVocabulary& target, const DraftVocabulary& draft);

}  // namespace smartkv

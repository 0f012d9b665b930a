// Whether a draft model means the same tokens as the model that it drafts for.
#pragma once

#include <cstdint>

#include "engine/text/tokenizer.h"

namespace smartkv {

// The tokens of a model. Both pointers are the caller's.
struct DraftVocabulary {
  const Tokenizer* tokenizer = nullptr;
  int64_t outputs = 0;  // rows of embedding and head, padding included
};

// Throws ModelError, which names the first token that differs, unless each id stands for the same token in both. Drafts are verified
// by id. One vocabulary may go on with padding where the other ends: ids without a token, or with one named "[PAD" and digits,
// which is what converters to GGUF write for the rows of an embedding that no token uses. So may the outputs.
void check_draft_vocabulary(const DraftVocabulary& target, const DraftVocabulary& draft);

}  // namespace smartkv

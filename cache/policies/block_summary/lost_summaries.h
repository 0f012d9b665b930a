// Summaries as the store of the lost: of the tokens that an evicting policy drops.
#pragma once

#include <memory>

#include "cache/parameters.h"
#include "cache/stages/slot_store.h"

namespace smartkv {

// The parameter "lost": "nothing" (they are gone: null), "summaries", or {"store": "summaries", "tokens": entries of a layer
// and KV head, ...} with the parameters of block_summary. Their room comes out of options->tokens, a quarter of the slots if
// not told. Throws CacheError.
std::unique_ptr<StoreFactory> read_lost_store(Parameters* parameters, EvictionOptions* options);

}  // namespace smartkv

// Summaries of the tokens that an evicting policy loses: a second store in the chain.
#pragma once

#include <memory>

#include "cache/parameters.h"
#include "cache/stores/slot_store.h"

namespace smartkv {

// Reads the parameter "lost":
//  - "nothing": returns null, and the tokens are gone.
//  - "summaries", or {"store": "summaries", "tokens": entries of a layer and KV head, ...} with the parameters of
//    block_summary: returns the factory of a SummaryStore. Its entries are taken out of options->tokens, a quarter of
//    the slots by default, and options->hand_on is set.
// Throws CacheError.
std::unique_ptr<StoreFactory> read_lost_store(Parameters* parameters, EvictionOptions* options);

}  // namespace smartkv

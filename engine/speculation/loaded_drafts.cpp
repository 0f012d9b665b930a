#include "engine/speculation/loaded_drafts.h"

#include <string>

#include "engine/engine.h"
#include "engine/speculation/pillar_cache.h"

namespace smartkv {

void check_loaded(const SpeculationSpec& spec, const LoadedDrafts& loaded) {
  const auto refuse = [](const std::string& field, const std::string& why) {
    throw RequestError(RequestError::Kind::kInvalid, field, field + ": " + why);
  };
  if (spec.method == DraftMethod::kDraftModel && !loaded.draft_model) {
    refuse("speculative.method", "the server has loaded no draft model (option draft_model)");
  }
  if (spec.method == DraftMethod::kSelf && loaded.ranks > 1) {
    refuse("speculative.method", "\"self\" needs a single process, but tensor_parallel started several");
  }
  if (spec.method == DraftMethod::kSelf && spec.int4 && !loaded.int4_weights) {
    refuse("speculative.weights", "the server has loaded no 4-bit copy of its weights (option draft_weights)");
  }
  if (spec.method == DraftMethod::kAuto && !spec.kv_cache.is_null() && !loaded.draft_model && !loaded.int4_weights) {
    refuse(
        "speculative.kv_cache",
        "needs a draft model or 4-bit weights, and the server has loaded neither (options draft_model, draft_weights)");
  }
  if (!is_pillar(spec.kv_cache)) return;
  if (spec.method == DraftMethod::kDraftModel || (spec.method == DraftMethod::kAuto && loaded.draft_model)) {
    refuse("speculative.kv_cache",
           "policy \"pillar_attn\" reads the attention of the model's own passes: expected "
           "\"method\": \"self\", found \"" +
               std::string(name(spec.method)) + '"');
  }
  if (spec.offload) {
    refuse("speculative.kv_cache",
           "policy \"pillar_attn\" copies rows of the request's own cache: expected "
           "\"offload\": false, found true");
  }
}

}  // namespace smartkv

// The commands of the training module, without LibTorch's headers.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

namespace smartkv {

// Receives progress: {"event": ACTIVITY, "done": n, "of": n}, with "fit" also "loss".
using TrainingEvent = std::function<void(const nlohmann::json& event)>;

// Trains the gates of a model (train_gate.h). Returns the report: GateQuality per layer and mean, samples, seconds,
// file. Throws ModelError, or std::invalid_argument naming the option.
//
// Required options:
//  - "model", "text": paths
//  - "out": the safetensors file to write
// Optional, with defaults:
//  - "valid" "": a held-out text; if empty, the last windows of the text are held out
//  - "windows" 24, "valid_windows" 2, "context" 4096: windows of the text, and tokens per window
//  - "facts" 12: facts hidden in each training window (hide_facts)
//  - "epochs" 6, "batch" 1024, "learning_rate" 2e-3: GateFitOptions
//  - "rest" 0.3: LifespanOptions
//  - "lifespans_of" "": gates whose first heads are taken over instead of trained
//  - "repeat_windows" 10, "repeat_context" 1024, "repeat_facts" 0, "ridge" 1e-3: windows, tokens per window and facts
//    hidden in each window for the second heads (ImportanceFit)
//  - "seed" 1, "threads" 0: 0 threads means every core
nlohmann::ordered_json train_gate(const nlohmann::json& options, const TrainingEvent& event);

// Trains a draft for a model (train_draft.h). Returns the report: sizes, DraftQuality before and after on both held-out
// sets, seconds, file. Throws ModelError, or std::invalid_argument naming the option.
//
// Required options:
//  - "model": path
//  - "out": the safetensors file to write
//  - "prompts" (a file with one prompt per line for the model to answer) and "text"; one of them may be ""
// Optional, with defaults:
//  - "held_out" "": prompts to measure on; if empty, the last tenth of the prompts
//  - "valid" "": a held-out text, as in train_gate
//  - "data" "": a file that keeps the model's answers and distributions; read if it exists, otherwise written
//  - "layers" []: layers of the model to start from; if empty, the first two and the last (the first alone, if there
//    are at most three)
//  - "vocabulary" 8192: tokens that the draft can propose
//  - "answers" 2, "temperature" 0.7, "answer_tokens" 256: answers to each prompt, the first one greedy, the others
//    sampled
//  - "windows" 256, "valid_windows" 16, "context" 512: windows of the text, and tokens per window
//  - "epochs" 6, "batch" 2048 (tokens), "learning_rate" 1.2e-3: DraftFitOptions
//  - "seed" 1, "threads" 0: 0 threads means every core
nlohmann::ordered_json train_draft(const nlohmann::json& options, const TrainingEvent& event);

}  // namespace smartkv

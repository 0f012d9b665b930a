// What the training module offers, free of LibTorch's headers.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

namespace smartkv {

// {"event": what is being done, "done": n, "of": n}, with "fit" also "loss".
using TrainingEvent = std::function<void(const nlohmann::json& event)>;

// Trains the gates of a model (train_gate.h). Options: "model" and "text" (paths), "out" (a safetensors file), and
// these with their defaults: "valid" "" (a held-out text; else the last windows of the text are held out), "windows"
// 24, "valid_windows" 2, "context" 4096, "facts" 12 (hidden in each training window: hide_facts), "epochs" 6, "batch" 1024,
// "learning_rate" 2e-3, "rest" 0.3 (LifespanOptions), "lifespans_of" "" (gates whose first head is taken over),
// "repeat_windows" 10, "repeat_context" 1024, "repeat_facts" 0 (hidden in each), "ridge" 1e-3 (ImportanceFit), "seed" 1,
// "threads" 0.
// Returns the report: per layer and mean GateQuality, samples, seconds, file.
// Throws ModelError or std::invalid_argument naming the option.
nlohmann::ordered_json train_gate(const nlohmann::json& options, const TrainingEvent& event);

// Trains a draft for a model (train_draft.h). Options: "model" (path), "out" (a safetensors file), what to learn from:
// "prompts" (a file, one a line, that the model answers) and "text", either may be ""; and these with their defaults:
// "held_out" "" (prompts to measure on; else the last tenth of the prompts), "valid" "" (as in train_gate), "data" ""
// (a file that keeps what the model said: read if it is there, else written), "layers" [] (of the model, to start from;
// else the first two and the last), "vocabulary" 8192, "answers" 2 (to a prompt: one greedy, the others drawn),
// "temperature" 0.7, "answer_tokens" 256, "windows" 256, "valid_windows" 16, "context" 512, "epochs" 6, "batch" 2048
// (tokens), "learning_rate" 1.2e-3, "seed" 1, "threads" 0.
// Returns the report: sizes, DraftQuality before and after on both held-out sets, seconds, file.
// Throws ModelError or std::invalid_argument naming the option.
nlohmann::ordered_json train_draft(const nlohmann::json& options, const TrainingEvent& event);

}  // namespace smartkv

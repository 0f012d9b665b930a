// What the training module offers, free of LibTorch's headers.
#pragma once

#include <functional>
#include <nlohmann/json.hpp>

namespace smartkv {

// {"event": "observe" | "fit", "done": n, "of": n}, with "fit" also "loss".
using TrainingEvent = std::function<void(const nlohmann::json& event)>;

// Trains the gates of a model (train_gate.h). Options: "model" and "text" (paths), "out" (a safetensors file), and
// these with their defaults: "valid" "" (a held-out text; else the last windows of the text are held out), "windows"
// 24, "valid_windows" 2, "context" 4096, "epochs" 6, "batch" 1024, "learning_rate" 2e-3, "rest" 0.3 (LifespanOptions),
// "seed" 1, "threads" 0.
// Returns the report: per layer and mean GateQuality, samples, seconds, file.
// Throws ModelError or std::invalid_argument naming the option.
nlohmann::ordered_json train_gate(const nlohmann::json& options, const TrainingEvent& event);

}  // namespace smartkv

// Trains the gates of a model: observes lifespans in windows of a text, fits a gate for every layer, and measures the
// gates on held-out text.
#pragma once

#include <vector>

#include "lab/training/gate_fit.h"
#include "lab/training/gate_report.h"
#include "lab/training/training_commands.h"
#include "lab/training/training_inputs.h"

namespace smartkv {

struct GateTrainingOptions {
  LifespanOptions lifespans;
  GateFitOptions fit;
  KeepOptions keep;
};

struct TrainedGate {
  std::vector<GateLayer> layers;
  std::vector<GateQuality> quality;  // per layer, on the held-out windows
  int64_t samples_per_layer = 0;
};

// Trains a gate for every layer. Only tokens in the first half of a window are samples, because at least half a window
// of their future is known.
TrainedGate train_gate(const TorchLlama& model, const TokenWindows& training, const TokenWindows& held_out,
                       const GateTrainingOptions& options, const TrainingEvent& event);

}  // namespace smartkv

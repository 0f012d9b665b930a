// Trains a draft for a model: the model answers prompts and reads text, a few of its layers learn to foresee it.
#pragma once

#include "engine/torch/train_draft_data.h"
#include "engine/torch/train_draft_fit.h"
#include "engine/torch/training_commands.h"

namespace smartkv {

struct DraftTrainingOptions {
  std::vector<int64_t> layers;  // of the target, ascending
  int64_t vocabulary = 8192;    // tokens that the draft can propose
  torch::Dtype dtype = torch::kBFloat16;
  DraftFitOptions fit;
};

struct DraftReport {
  int64_t trained_on = 0;  // positions
  DraftQuality answers_before, answers, windows_before, windows;  // on the held-out sets
};

// Trains, measures and writes `file`; the report joins the file's metadata, as do `notes`.
DraftReport train_draft(const Weights& target, const DraftData& data, const DraftTrainingOptions& options,
                        const std::filesystem::path& file, const std::map<std::string, std::string>& notes,
                        const TrainingEvent& event);

}  // namespace smartkv

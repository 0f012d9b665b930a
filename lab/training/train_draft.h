// Trains a draft for a model. The model answers prompts and reads text, and copies of a few of its layers learn to
// predict its tokens.
#pragma once

#include "lab/training/train_draft_data.h"
#include "lab/training/train_draft_fit.h"
#include "lab/training/training_commands.h"

namespace smartkv {

struct DraftTrainingOptions {
  std::vector<int64_t> layers;  // layers of the target to start from, ascending
  int64_t vocabulary = 8192;    // tokens that the draft can propose
  torch::Dtype dtype = torch::kBFloat16;
  DraftFitOptions fit;
};

struct DraftReport {
  int64_t trained_on = 0;                                         // positions with a known distribution of the target
  DraftQuality answers_before, answers, windows_before, windows;  // on the held-out sets, before and after training
};

// Trains a draft, measures it before and after, and writes it to `file`. The file's metadata contains the quality and
// `notes`. Throws ModelError.
DraftReport train_draft(const Weights& target, const DraftData& data, const DraftTrainingOptions& options,
                        const std::filesystem::path& file, const std::map<std::string, std::string>& notes,
                        const TrainingEvent& event);

}  // namespace smartkv

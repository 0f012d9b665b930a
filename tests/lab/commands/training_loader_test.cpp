#include "lab/commands/training_loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace smartkv {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(TrainingModule, SaysWhatIsMissingAndHowToGetIt) {
  try {
    run_training("no_such_folder/libsmartkv_training.so", "train-gate", {});
    FAIL() << "nothing was thrown";
  } catch (const TrainingError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("train-gate needs no_such_folder/libsmartkv_training.so"),
                                    HasSubstr("LibTorch"), HasSubstr("scripts/build_torch.sh")));
  }
}

}  // namespace
}  // namespace smartkv

#include "vlmtrain/train/ranks.h"

#include <stdlib.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {
namespace {

using testing::HasSubstr;
using Environment = std::vector<std::pair<const char*, const char*>>;

/// Why a process with these variables is refused; empty where it is not.
std::string refusal_with(const Environment& environment) {
  for (const char* name : {"RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS",
                           "SLURM_STEP_NUM_TASKS", "SLURM_PROCID"}) {
    unsetenv(name);
  }
  for (const auto& [name, value] : environment) setenv(name, value, 1);
  std::string refusal;
  try {
    refuse_several_ranks();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), ExitCode::kUsage);
    refusal = error.what();
  }
  for (const auto& [name, value] : environment) unsetenv(name);
  return refusal;
}

TEST(Ranks, OneOfSeveralIsRefused) {
  const std::vector<Environment> cases{{{"WORLD_SIZE", "2"}, {"RANK", "0"}},
                                       {{"RANK", "1"}},
                                       {{"OMPI_COMM_WORLD_SIZE", "4"}},
                                       {{"PMI_SIZE", "2"}},
                                       {{"SLURM_NTASKS", "4"}, {"SLURM_STEP_NUM_TASKS", "4"}, {"SLURM_PROCID", "0"}}};
  for (const auto& environment : cases) {
    EXPECT_THAT(refusal_with(environment), HasSubstr("training on several ranks is not there yet"));
  }
  EXPECT_THAT(refusal_with({{"SLURM_STEP_NUM_TASKS", "4"}}), HasSubstr("SLURM_STEP_NUM_TASKS=4"));
}

TEST(Ranks, ASingleProcessIsNot) {
  const std::vector<Environment> cases{{},
                                       {{"WORLD_SIZE", "1"}, {"RANK", "0"}},
                                       {{"SLURM_NTASKS", "1"}, {"SLURM_STEP_NUM_TASKS", "1"}},
                                       // A batch script in a job of several tasks.
                                       {{"SLURM_NTASKS", "8"}, {"SLURM_PROCID", "0"}},
                                       {{"RANK", "major"}, {"WORLD_SIZE", ""}}};
  for (const auto& environment : cases) EXPECT_EQ(refusal_with(environment), "");
}

}  // namespace
}  // namespace vlmtrain::train

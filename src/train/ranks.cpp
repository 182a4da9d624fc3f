#include "vlmtrain/train/ranks.h"

#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "vlmtrain/base/error.h"

namespace vlmtrain::train {

namespace {

/// Nothing where it is not set or something else goes by that name.
std::optional<int64_t> number_in_environment(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) return std::nullopt;
  const std::string_view text = value;
  int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  return error == std::errc() && end == text.data() + text.size() ? std::optional{number} : std::nullopt;
}

void refuse(const char* variable, int64_t value) {
  throw usage_error(
      "{}={}: this is one of several processes of a run, and training on several ranks is not there yet: each would "
      "train by itself, into the same output.dir; start a single one, without torchrun or mpirun, under SLURM with "
      "srun --ntasks=1",
      variable, value);
}

}  // namespace

void refuse_several_ranks() {
  // PyTorch's launchers; Open MPI; MPICH and Intel MPI; srun, whose variables for the whole job (SLURM_NTASKS) a batch
  // script has too.
  for (const char* variable : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"}) {
    if (const auto count = number_in_environment(variable); count && *count > 1) refuse(variable, *count);
  }
  if (const auto rank = number_in_environment("RANK"); rank && *rank > 0) refuse("RANK", *rank);
}

}  // namespace vlmtrain::train

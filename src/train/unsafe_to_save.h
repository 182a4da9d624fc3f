#pragma once

#include <exception>
#include <string>

namespace vlmtrain::train {

/// Where an error found a run.
struct RunErrorState {
  bool is_saving = false;              ///< a checkpoint was being written
  bool are_weights_consistent = true;  ///< false: some of them are those of the next step
  bool metrics_are_lost = false;       ///< of the last step: its loss, and whether it was skipped
};

/// Why what is in memory after an error is not to be saved; empty where it may be.
std::string find_unsafe_save_reason(const std::exception& error, const RunErrorState& state);

}  // namespace vlmtrain::train

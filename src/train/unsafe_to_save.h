#pragma once

#include <exception>
#include <string>

namespace vlmtrain::train {

/// Where an error found a run.
struct Interruption {
  bool is_saving = false;         ///< a checkpoint was being written
  bool weights_are_whole = true;  ///< false: some of them are those of the next step
  bool numbers_are_lost = false;  ///< of the last step: its loss, and whether it was skipped
};

/// Why what is in memory after an error is not to be saved; empty where it may be.
std::string unsafe_to_save(const std::exception& error, const Interruption& where);

}  // namespace vlmtrain::train

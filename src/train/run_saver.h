#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "train/run_setup.h"

namespace vlmtrain::train {

/// Writes what a run can go on from: its checkpoints, and the ledger beside them; of several ranks the first does. A
/// run on a virtual card has nothing to save.
class RunSaver {
 public:
  using OnCheckpoint = std::function<void(const std::filesystem::path& folder)>;

  /// All must outlive it.
  RunSaver(const Config& config, RunSetup& run, const RunRanks& ranks, OnCheckpoint on_checkpoint);

  /// The run as it is now. REQUIRES: all steps so far have been reported.
  void save();
  /// Whether nothing has happened since save(), or since the checkpoint that the run went on from.
  bool is_saved() const { return saved_step_ == run_.state.step; }

  void write_ledger() const;

  /// A run that fails keeps the steps that are done, where it is safe to. `numbers_are_lost`: tries to read those of
  /// the last step. Throws nothing; the log says what became of it.
  void save_before_the_end(const std::exception& error, const std::function<bool()>& numbers_are_lost);

 private:
  void write_checkpoint();

  const Config& config_;
  RunSetup& run_;
  const RunRanks& ranks_;
  OnCheckpoint on_checkpoint_;
  int64_t saved_step_;
  bool is_saving_ = false;  // stays so where that failed
};

}  // namespace vlmtrain::train

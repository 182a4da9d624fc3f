#pragma once

#include <cstdint>
#include <exception>
#include <filesystem>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <string>

#include "train/checkpoint/checkpoint_content.h"
#include "train/loop/run_setup.h"
#include "train/planning/host_run_plan.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/planner/options.h"

namespace vlmtrain::train {

/// Returns the host memory that asynchronous saving may take for copies, which live while further
/// steps run. On a GPU: the free memory less the margin of `mode`. On the CPU: also less what
/// planned steps will still take, and no more than the plan leaves of its limit; nothing without a
/// plan. `host_plan` is null on a GPU. `ranks`: those of the run on this machine.
memory::AvailableHostMemory compute_async_save_budget(const HostRunPlan* host_plan, planner::MemoryMode mode,
                                                      int64_t ranks);

/// The figures of that budget: memory of the process now, its maximum, and its planned maximum.
struct AsyncSaveInputs {
  memory::AvailableHostMemory available{};
  int64_t process_bytes = 0;
  int64_t planned_bytes = 0;
  int64_t plan_remaining_bytes = 0;
  int64_t ranks = 1;
};
memory::AvailableHostMemory compute_async_save_budget(const AsyncSaveInputs& inputs, double margin_percent);

/// The state of a run in which an error was caught.
struct RunErrorState {
  bool is_saving = false;              ///< a checkpoint was being written
  bool are_weights_consistent = true;  ///< false: some weights are those of the next step already
  bool metrics_are_lost = false;       ///< of the last step: its loss, and whether it was skipped
};

/// Returns why the weights in memory must not be saved after an error; empty if they may be.
std::string find_unsafe_save_reason(const std::exception& error, const RunErrorState& state);

/// Writes the checkpoints and the ledger of a run. Rank 0 writes; if ranks share the optimizer's
/// state, all ranks write together. A run on a virtual GPU saves nothing.
///
/// A thread writes copies while training continues, if memory allows them (output.async_save),
/// one checkpoint at a time, with the same bytes. Its errors are thrown by the next call of save(),
/// poll() or finish().
///
/// Not thread-safe; belongs to the run's thread.
class RunSaver {
 public:
  /// Called on the run's thread when a checkpoint is whole.
  using OnCheckpoint = std::function<void(int64_t step, const std::filesystem::path& folder)>;
  /// Returns the host memory that copies may take.
  using MemoryBudget = std::function<memory::AvailableHostMemory()>;

  /// All arguments must outlive the object.
  RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, OnCheckpoint on_checkpoint);
  RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, OnCheckpoint on_checkpoint,
           MemoryBudget budget);
  /// Waits for a checkpoint that is being written.
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  /// Saves the run's state; `continues`: further steps follow. Waits for the previous checkpoint.
  /// REQUIRES: all steps so far were reported.
  void save(bool continues);
  /// Returns whether all ranks write a checkpoint together, so that all have to call save().
  bool is_state_sharded() const;
  /// Returns whether the newest checkpoint has the run's current step.
  bool is_saved() const { return saved_step_ == run_.state.step; }

  /// Reports a checkpoint that has become whole. To be called between two steps.
  void poll();
  /// Waits until a checkpoint that is being written is whole.
  void finish();

  /// Returns the seconds that steps waited for checkpoints.
  double seconds() const { return seconds_; }

  /// Writes ledger.json into the run's folder.
  void write_ledger() const;

  /// Saves the completed steps of a run that failed, if find_unsafe_save_reason() allows it.
  /// `metrics_are_lost` tries to read those of the last step. Throws nothing; logs the result.
  void emergency_save(const std::exception& error, const std::function<bool()>& metrics_are_lost);

 private:
  struct SavedCheckpoint {
    int64_t step;
    std::filesystem::path folder;
  };

  void save_now();
  /// Saves with all ranks, synchronously.
  void save_sharded();
  /// Returns false if the checkpoint has to be written before the next step.
  bool save_async();
  bool can_save_async();
  int64_t compute_async_save_bytes() const;
  void log_sync_reason(const std::string& reason);
  CheckpointContent make_content(ValueStorage values) const;
  CheckpointContent make_copied_content() const;
  std::string format_ledger() const;
  /// May run on any thread.
  SavedCheckpoint write(const CheckpointContent& content, const std::string& ledger) const;
  void finish_after_error();

  const Config& config_;
  RunSetup& run_;
  const RankGroup& ranks_;
  OnCheckpoint on_checkpoint_;
  MemoryBudget get_budget_;
  int64_t saved_step_;
  bool is_saving_ = false;  // stays true after a failure
  bool has_logged_sync_reason_ = false;
  double seconds_ = 0;
  std::future<SavedCheckpoint> writing_;  // declared last: its destructor waits before the other members are destroyed
};

}  // namespace vlmtrain::train

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

/// Returns the host memory that asynchronous saving may take for copies, which exist while further
/// steps run. On a GPU (`host_plan` is null): the free memory minus the margin of `mode`. On the
/// CPU: also minus the memory that planned steps have yet to allocate, and at most the part of its
/// limit that the plan leaves; 0 if planning failed. `ranks`: number of ranks of the run on this
/// machine.
memory::AvailableHostMemory compute_async_save_budget(const HostRunPlan* host_plan, planner::MemoryMode mode,
                                                      int64_t ranks);

/// The inputs of compute_async_save_budget().
struct AsyncSaveBudgetInputs {
  memory::AvailableHostMemory available{};  ///< memory that the process may use, including its own
  int64_t process_bytes = 0;                ///< memory that the process uses now
  int64_t planned_bytes = 0;                ///< planned maximum of the process; 0 without a plan
  int64_t unused_limit_bytes = 0;           ///< part of the plan's limit that the plan does not use
  int64_t ranks = 1;                        ///< ranks on this machine, which all grow alike
};

/// Returns the budget for these inputs. `margin_percent` of the available memory stays free.
memory::AvailableHostMemory compute_async_save_budget(const AsyncSaveBudgetInputs& inputs, double margin_percent);

/// The state of a run at the time of an error.
struct RunErrorState {
  bool is_saving = false;              ///< a checkpoint was being written
  bool are_weights_consistent = true;  ///< false: the error interrupted an update of the weights
  bool are_metrics_lost = false;       ///< the loss of the last step and whether it was skipped are unknown
};

/// Returns the reason why the weights in memory must not be saved after an error; empty if they may
/// be.
std::string find_unsafe_save_reason(const std::exception& error, const RunErrorState& state);

/// The writer of a run's checkpoints and ledger. Rank 0 writes; if the optimizer's state is
/// sharded, all ranks write together. On a virtual GPU nothing is saved.
///
/// If host memory suffices for copies (output.async_save), another thread writes them while
/// training continues, one checkpoint at a time. The files are the same in both modes. Errors of
/// that thread are thrown by the next call of save(), poll() or finish().
///
/// Not thread-safe; belongs to the run's thread.
class RunSaver {
 public:
  /// Called on the run's thread after a checkpoint is complete.
  using CheckpointHandler = std::function<void(int64_t step, const std::filesystem::path& folder)>;
  /// Returns the host memory that copies may take.
  using MemoryBudgetFunction = std::function<memory::AvailableHostMemory()>;

  /// All arguments must outlive the object.
  RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, CheckpointHandler on_checkpoint);
  RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, CheckpointHandler on_checkpoint,
           MemoryBudgetFunction budget);
  /// Waits for a checkpoint that is being written.
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  /// Saves the run's state. Waits for the previous checkpoint. Saves synchronously unless
  /// `continues`, which means that further steps follow. REQUIRES: all completed steps were
  /// reported.
  void save(bool continues);
  /// Returns whether all ranks write a checkpoint together, so that all have to call save().
  bool is_state_sharded() const;
  /// Returns whether the newest checkpoint has the run's current step.
  bool is_current_step_saved() const { return saved_step_ == run_.state.step; }

  /// Reports a checkpoint that was completed since the last call; does not wait. Called between
  /// steps.
  void poll();
  /// Waits for a checkpoint that is written from optimizer state in host memory without copies. Called
  /// before each update.
  void wait_until_state_may_change();
  /// Waits until a checkpoint that is being written is complete, and reports it.
  void finish();

  /// Returns the seconds that steps waited for checkpoints.
  double save_seconds() const { return save_seconds_; }

  /// Writes ledger.json into the run's folder.
  void write_ledger() const;

  /// Saves the completed steps of a run that failed with `error`, unless find_unsafe_save_reason()
  /// forbids it or the state is sharded. `are_metrics_lost`: tries to read the results of the last
  /// step, and returns whether they are lost. Logs the outcome; throws nothing.
  void emergency_save(const std::exception& error, const std::function<bool()>& are_metrics_lost);

 private:
  struct SavedCheckpoint {
    int64_t step;
    std::filesystem::path folder;
  };

  void save_synchronously();
  /// Saves with all ranks, synchronously.
  void save_sharded();
  /// Starts an asynchronous save. Returns false if the caller has to save synchronously instead.
  bool save_async();
  bool can_save_async();
  int64_t compute_async_save_bytes() const;
  void log_synchronous_save_reason(const std::string& reason);
  CheckpointContent make_content(ParameterValueStorage values) const;
  CheckpointContent make_copied_content() const;
  std::string format_ledger() const;
  /// Writes checkpoint and ledger. May run on any thread.
  SavedCheckpoint write(const CheckpointContent& content, const std::string& ledger) const;
  void finish_write_after_error();

  const Config& config_;
  RunSetup& run_;
  const RankGroup& ranks_;
  CheckpointHandler on_checkpoint_;
  MemoryBudgetFunction get_memory_budget_;
  int64_t saved_step_;      // step of the newest checkpoint; -1 without one
  bool is_saving_ = false;  // stays true after a failure
  bool has_logged_sync_reason_ = false;
  double save_seconds_ = 0;
  std::future<SavedCheckpoint>
      pending_write_;  // declared last: its destructor waits before the other members are destroyed
};

}  // namespace vlmtrain::train

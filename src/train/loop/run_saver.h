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
#include "vlmtrain/memory/host.h"
#include "vlmtrain/planner/options.h"

namespace vlmtrain::train {

/// What this process can have of the host's memory for copies that live while steps are done, beside what these take:
/// of what is free now, less the margin of `mode`, and on the CPU less what the steps are planned to take more than
/// there is now; on the CPU no more than the plan leaves of its limit, and nothing without a plan. `host_plan`: null on
/// a GPU. `ranks`: of the run on this machine.
memory::AvailableHostMemory compute_async_save_budget(const HostRunPlan* host_plan, planner::MemoryMode mode,
                                                      int64_t ranks);

/// The same, of given figures: what the process has and can have in all, and what it is planned to have at most.
struct AsyncSaveInputs {
  memory::AvailableHostMemory available{};
  int64_t process_bytes = 0;
  int64_t planned_bytes = 0;
  int64_t plan_remaining_bytes = 0;
  int64_t ranks = 1;
};
memory::AvailableHostMemory compute_async_save_budget(const AsyncSaveInputs& inputs, double margin_percent);

/// Where an error found a run.
struct RunErrorState {
  bool is_saving = false;              ///< a checkpoint was being written
  bool are_weights_consistent = true;  ///< false: some of them are those of the next step
  bool metrics_are_lost = false;       ///< of the last step: its loss, and whether it was skipped
};

/// Why what is in memory after an error is not to be saved; empty where it may be.
std::string find_unsafe_save_reason(const std::exception& error, const RunErrorState& state);

/// Writes what a run can go on from: its checkpoints, and the ledger beside them; of several ranks the first does, and
/// where they share the optimizer's state all do together. A run on a virtual card has nothing to save.
///
/// Where there is room for copies, training goes on while a thread writes them (output.async_save): one checkpoint at a
/// time, the bytes that the other way writes. What it throws is thrown by the next call but the last two.
class RunSaver {
 public:
  /// Told on the run's thread, once a checkpoint is whole.
  using OnCheckpoint = std::function<void(int64_t step, const std::filesystem::path& folder)>;
  /// What copies may take of the host's memory.
  using MemoryBudget = std::function<memory::AvailableHostMemory()>;

  /// All must outlive it.
  RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, OnCheckpoint on_checkpoint);
  RunSaver(const Config& config, RunSetup& run, const RankGroup& ranks, OnCheckpoint on_checkpoint,
           MemoryBudget budget);
  /// Waits for what is being written.
  ~RunSaver();
  RunSaver(const RunSaver&) = delete;
  RunSaver& operator=(const RunSaver&) = delete;

  /// The run as it is now; `continues`: further steps follow. Waits for the checkpoint before, if that is being
  /// written. REQUIRES: all steps so far have been reported.
  void save(bool continues);
  /// Whether all ranks write a checkpoint together, so that all have to call save() for it.
  bool is_state_sharded() const;
  /// Whether nothing has happened since save(), or since the checkpoint that the run went on from.
  bool is_saved() const { return saved_step_ == run_.state.step; }

  /// Between two steps: tells of a checkpoint that has become whole meanwhile.
  void poll();
  /// Waits until it is whole, if one is being written.
  void finish();

  /// That steps waited for checkpoints so far.
  double seconds() const { return seconds_; }

  void write_ledger() const;

  /// A run that fails keeps the steps that are done, where it is safe to. `metrics_are_lost`: tries to read those of
  /// the last step. Throws nothing; the log says what became of it.
  void emergency_save(const std::exception& error, const std::function<bool()>& metrics_are_lost);

 private:
  struct SavedCheckpoint {
    int64_t step;
    std::filesystem::path folder;
  };

  void save_now();
  /// By all ranks, which share the optimizer's state; steps wait.
  void save_sharded();
  /// False where it has to be written before the next step.
  bool save_async();
  bool can_save_async();
  int64_t compute_async_save_bytes() const;
  void log_sync_reason(const std::string& reason);
  CheckpointContent make_content(ValueStorage values) const;
  CheckpointContent make_copied_content() const;
  std::string format_ledger() const;
  /// On any thread.
  SavedCheckpoint write(const CheckpointContent& content, const std::string& ledger) const;
  void finish_after_error();

  const Config& config_;
  RunSetup& run_;
  const RankGroup& ranks_;
  OnCheckpoint on_checkpoint_;
  MemoryBudget get_budget_;
  int64_t saved_step_;
  bool is_saving_ = false;  // stays so where that failed
  bool has_logged_sync_reason_ = false;
  double seconds_ = 0;
  std::future<SavedCheckpoint> writing_;  // the last member: it is waited for before the others go
};

}  // namespace vlmtrain::train

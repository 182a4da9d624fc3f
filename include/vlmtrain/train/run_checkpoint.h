#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "vlmtrain/engine/settings/training_settings.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::engine {
class Consensus;
class Optimizer;
struct StateMigrationResult;
}  // namespace vlmtrain::engine
namespace vlmtrain::models {
class BaseWeights;
}
namespace vlmtrain::nn {
class ParameterStore;
}

namespace vlmtrain::train {

struct CheckpointContent;  // src/train/checkpoint/checkpoint_content.h

/// Returns the newest checkpoint of the run in `run_dir`; nullopt if it has none. Writes
/// nothing.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_dir);

/// Returns the checkpoint with the best evaluation, according to the state in the newest one;
/// nullopt if it was removed or there was no evaluation. Throws UserError (kBadData) for an invalid
/// state.
std::optional<std::filesystem::path> find_best_checkpoint(const std::filesystem::path& run_dir);

/// The part of a sharded checkpoint that one rank writes.
struct CheckpointShard {
  engine::Shard shard{};             ///< this rank's shard of the optimizer's state
  bool is_replica = false;           ///< another rank writes the same shard, so this one does not
  bool writes_shared_files = false;  ///< this rank also writes all other files
  /// Takes part in the all-gathers of sharded weights while rank 0 writes them. REQUIRES: not
  /// empty.
  std::function<void()> join_remaining_passes{};
};

/// The files of the newest checkpoint that CheckpointManager::check_newest_checkpoint() reads.
enum class CheckpointVerificationScope {
  kSmallFiles,  ///< tensor headers and small files
  kAllFiles,    ///< every file in full, which are gigabytes of weights and optimizer states
};

/// The checkpoints of a run, `checkpoints/step-N/`: a model that transformers loads, or with LoRA
/// an adapter that PEFT loads, and the folder trainer_state. Each is written under a temporary name
/// and renamed, so a process that is killed leaves the previous checkpoint intact.
/// trainer_state/checksums.json has the checksums of all other files, computed while they were
/// written.
///
/// Not thread-safe: one call at a time, from any thread.
class CheckpointManager {
 public:
  /// Keeps the `save_total_limit` newest checkpoints in `run_dir`/checkpoints, and with `keep_best`
  /// the best one as well. Removes temporary files that a killed run left there and in `run_dir`.
  CheckpointManager(const std::filesystem::path& run_dir, int64_t save_total_limit, bool keep_best = true);

  /// Returns the folder of the newest checkpoint; nullopt if no checkpoint exists.
  std::optional<std::filesystem::path> find_newest() const;

  /// Throws UserError (kBadData), with advice, if the newest checkpoint is incomplete or differs
  /// from its checksums, for example after a partial copy, or if something other than a folder has
  /// the name of a checkpoint.
  void check_newest_checkpoint(CheckpointVerificationScope scope = CheckpointVerificationScope::kAllFiles) const;

  /// Makes checkpoints/best a symbolic link to the checkpoint of `best_step`, or removes the link
  /// if that checkpoint does not exist. Warns if the file system does not support links.
  void link_best_checkpoint(std::optional<int64_t> best_step);

  /// Writes a checkpoint and returns its folder. Removes the oldest checkpoints above the limit;
  /// warns if that fails. Consumes the tensors of `content`. Throws the errors of io/atomic.h, and
  /// UserError (kFailed) if the run's folder was removed: a new folder would lack the run's other
  /// files.
  std::filesystem::path write(const CheckpointContent& content);
  /// Writes a checkpoint together with all ranks of `consensus`, which must all call this: each
  /// writes its shard of the optimizer's state, and the rank with writes_shared_files writes the
  /// rest. The folder gets its final name after all shards are complete. Otherwise like write().
  std::filesystem::path write_sharded(const CheckpointContent& content, const CheckpointShard& shard,
                                      const engine::Consensus& consensus);

 private:
  void check_run_folder_exists() const;
  void finish_checkpoint_commit(std::optional<int64_t> best_step);
  void remove_surplus_checkpoints(std::optional<int64_t> best_step);
  void remove_checkpoint(const std::filesystem::path& checkpoint);

  std::filesystem::path folder_;
  int64_t save_total_limit_;
  bool keep_best_;
  bool supports_symlinks_ = true;  // assumed until a link fails
  std::vector<std::filesystem::path>
      remaining_folders_;  // leftovers of old checkpoints, whose removal failed; removed later
};

/// Returns the checkpoint in `folder`: for the folder of a run, its best checkpoint or, without
/// evaluations, its newest one, and logs which; otherwise `folder` itself. Reads all weights once
/// to compare their checksums. Throws UserError (kBadData) for a run without checkpoints, and for
/// weights that differ from their checksums.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& folder);

/// Restores moments and master weights from a checkpoint of this run with the same settings. Throws
/// UserError (kBadData) for a missing shard, or if names, shapes or data types differ.
void load_optimizer_state(const std::filesystem::path& checkpoint, engine::Optimizer& optimizer);

/// Restores the optimizer of a run that continues with changed settings, for the parameters that
/// match (Optimizer::migrate_state). A checkpoint with fp32 weights has no master weights; they come
/// from `checkpoint_weights`. Returns what was kept and reset. Throws UserError (kBadData).
engine::StateMigrationResult migrate_optimizer_state(const std::filesystem::path& checkpoint,
                                                     const models::BaseWeights& checkpoint_weights,
                                                     const nn::ParameterStore& store, engine::Optimizer& optimizer);

/// Reads trainer_state/ledger.json (data::Ledger::restore). Throws UserError (kBadData).
nlohmann::ordered_json load_ledger(const std::filesystem::path& checkpoint);

}  // namespace vlmtrain::train

#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/models/checkpoint_contents.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

struct CheckpointContent;  // train/checkpoint_content.h

/// Returns the newest checkpoint of the run in `run_dir`; nullopt if it has none. Writes
/// nothing.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_dir);

/// Returns the checkpoint that the newest one's state calls the best; nullopt if that was
/// removed.
std::optional<std::filesystem::path> find_best_checkpoint(const std::filesystem::path& run_dir);

/// The part of a sharded checkpoint that one rank writes.
struct RankShard {
  engine::Shard shard{};             ///< of the optimizer's state
  bool is_replica = false;           ///< another rank writes the same shard
  bool writes_shared_files = false;  ///< writes everything else as well
  std::function<void()>
      join_remaining_passes{};  ///< takes part in collective reads of sharded weights while rank 0 writes them
};

/// The files that RunCheckpoints::check() reads of the newest checkpoint.
enum class CheckScope {
  kSmallFiles,  ///< headers of tensors, and small files as a whole
  kAll,         ///< every file once; gigabytes of weights and states
};

/// The checkpoints of a run, `checkpoints/step-N/`: a model that transformers loads, or with LoRA
/// an adapter that PEFT loads, and the folder trainer_state. Each is written under a temporary name
/// and renamed, so that a kill at any instant leaves the previous checkpoint whole.
/// trainer_state/checksums.json has the checksum of every other file, computed while it was
/// written.
///
/// Not thread-safe.
class RunCheckpoints {
 public:
  /// Keeps the `save_total_limit` newest checkpoints, and with `keep_best` the best one as well.
  /// Removes unfinished files of a killed run, here and in `run_dir`.
  RunCheckpoints(const std::filesystem::path& run_dir, int64_t save_total_limit, bool keep_best = true);

  /// Returns the folder of the newest checkpoint; nullopt if no checkpoint exists.
  std::optional<std::filesystem::path> newest() const;

  /// Throws UserError (kBadData), with the way to continue, if the newest checkpoint is
  /// incomplete or differs from its checksums, for example after a partial copy, or if another
  /// kind of file has a checkpoint's name.
  void check(CheckScope scope = CheckScope::kAll) const;

  /// Makes checkpoints/best a link to the checkpoint of `best_step`, or removes the link if that
  /// checkpoint is not kept. Warns if the file system has no links.
  void link_best(std::optional<int64_t> best_step);

  /// Writes a checkpoint and returns its folder. Removes the oldest ones above the limit; warns
  /// if that fails. May run on any thread. Throws as io/atomic.h does, and UserError if the
  /// run's folder is gone: writing creates no new one, which would lack all other files of the run.
  std::filesystem::path write(const CheckpointContent& content);
  /// Writes the checkpoint with all ranks of `consensus`, each with its shard of the optimizer's
  /// state: the rank with writes_shared_files writes the rest. Renames the folder when all shards
  /// are whole.
  std::filesystem::path write_sharded(const CheckpointContent& content, const RankShard& shard,
                                      const engine::Consensus& consensus);

 private:
  void check_folder() const;
  void finish_commit(std::optional<int64_t> best_step);
  void remove_old(std::optional<int64_t> best_step);
  void remove(const std::filesystem::path& checkpoint);

  std::filesystem::path folder_;
  int64_t save_total_limit_;
  bool keep_best_;
  bool supports_links_ = true;                    // assumed until a link fails
  std::vector<std::filesystem::path> undeleted_;  // old checkpoints to delete again
};

/// Returns the checkpoint that `folder` stands for: the best one of a run's folder, or without
/// evaluations the newest one, which is logged; else `folder` itself. Throws UserError (kBadData)
/// for a run without checkpoints, and for weights that differ from their checksums: reads them
/// once.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& folder);

/// Restores moments and master weights. Throws UserError (kBadData).
void load_optimizer(const std::filesystem::path& checkpoint, engine::AdamW& optimizer);

/// Restores the optimizer of a run that continues with other settings, as far as parameters match
/// (AdamW::migrate_state). Master weights that the state lacks, because the checkpoint's weights
/// are fp32, come from `checkpoint_weights`.
engine::MigratedState migrate_optimizer(const std::filesystem::path& checkpoint,
                                        const models::BaseWeights& checkpoint_weights, const nn::ParameterStore& store,
                                        engine::AdamW& optimizer);

/// Reads trainer_state/ledger.json. Throws UserError (kBadData).
nlohmann::ordered_json load_ledger(const std::filesystem::path& checkpoint);

}  // namespace vlmtrain::train

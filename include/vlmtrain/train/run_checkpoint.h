#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <vector>

#include "vlmtrain/engine/consensus.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/models/weights_to_save.h"
#include "vlmtrain/train/run_state.h"

namespace vlmtrain::train {

struct CheckpointContent;  // train/checkpoint_content.h

/// Of the run in `run_dir`; nothing where it has none. Writes nothing.
std::optional<std::filesystem::path> find_newest_checkpoint(const std::filesystem::path& run_dir);
/// The one that the newest one's state calls the best, if it is there.
std::optional<std::filesystem::path> find_best_checkpoint(const std::filesystem::path& run_dir);

/// What a rank writes of a checkpoint of several.
struct RankShard {
  engine::Shard shard{};             ///< of the optimizer's state
  bool is_replica = false;           ///< another rank writes the same
  bool writes_shared_files = false;  ///< writes all else, too
  std::function<void()>
      join_remaining_passes{};  ///< goes along while the first one reads weights that all have parts of
};

/// What RunCheckpoints::check() reads of the newest checkpoint.
enum class CheckScope {
  kSmallFiles,  ///< headers of tensors, and small files whole
  kAll,         ///< each file once; of weights and states as many gigabytes as there are
};

/// The checkpoints of a run, `checkpoints/step-N/`: a model that transformers loads, or with LoRA an adapter that PEFT
/// loads, and `trainer_state/`. Each is written under a temporary name and renamed, so that a kill at any instant
/// leaves the previous one whole. trainer_state/checksums.json has a checksum of each other file, made while it is
/// written.
class RunCheckpoints {
 public:
  /// `keep` newest ones stay, with `keep_best` also the best. Removes what a killed run left unfinished, here and in
  /// `run_dir` itself.
  RunCheckpoints(const std::filesystem::path& run_dir, int64_t save_total_limit, bool keep_best = true);

  /// The folder of the newest checkpoint, if there is one.
  std::optional<std::filesystem::path> newest() const;

  /// Throws UserError (kBadData) that says how to go on where the newest checkpoint is not whole or not as it was
  /// written (trainer_state/checksums.json), as one that was copied in part, or where something else has a checkpoint's
  /// name.
  void check(CheckScope scope = CheckScope::kAll) const;

  /// Makes checkpoints/best a link to the checkpoint of `best_step`, or removes the link where none is kept. A file
  /// system without links is a warning.
  void link_best(std::optional<int64_t> best_step);

  /// Returns the checkpoint's folder. Older ones than `keep` go; what cannot be removed of them is a warning. On any
  /// thread, while no other uses this. Errors as io/atomic.h, and where the run's folder is gone: it is not made again,
  /// since all else that the run writes would be missing there.
  std::filesystem::path write(const CheckpointContent& content);
  /// The same by all ranks of `consensus` at once, each with its part of the optimizer's state: the first writes the
  /// checkpoint and its part, all others their parts into it. Its folder has its name when all are whole.
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
  bool supports_links_ = true;                    // as far as is known
  std::vector<std::filesystem::path> undeleted_;  // of old checkpoints, to be tried again
};

/// The checkpoint that `folder` stands for: where it is the folder of a run, the best one in it or, without
/// evaluations, the newest one, which the log names; else `folder` itself. Throws UserError (kBadData) for a run that
/// has none yet, and where its weights are not as they were written (trainer_state/checksums.json): reads them once.
std::filesystem::path resolve_checkpoint(const std::filesystem::path& folder);

/// Restores moments and master weights.
void load_optimizer(const std::filesystem::path& checkpoint, engine::AdamW& optimizer);
/// The same of a run that goes on with other settings, as far as they fit (AdamW::migrate_state). Masters that the
/// state lacks, since the weights were saved in fp32, are those of `checkpoint_weights`, the checkpoint itself.
engine::MigratedState migrate_optimizer(const std::filesystem::path& checkpoint,
                                        const models::BaseWeights& checkpoint_weights, const nn::ParameterStore& store,
                                        engine::AdamW& optimizer);
nlohmann::ordered_json load_ledger(const std::filesystem::path& checkpoint);

}  // namespace vlmtrain::train

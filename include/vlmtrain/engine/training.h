#pragma once

#include <memory>

#include "vlmtrain/engine/gradients/gradient_buckets.h"
#include "vlmtrain/engine/gradients/sharded_blocks.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/engine/optimizer/sharded_optimizer_sync.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

/// A model and what its training holds on the device beside it from step to step. The weights must be those that it
/// starts with, and what is frozen must be (models::freeze).
struct Training {
  /// `gradient_groups`: as Objective's. `shard`: this rank's of moments and master weights; where the model's blocks
  /// are in parts, these are of the same shard.
  Training(models::VisionLanguageModel& trained_model, const AdamWSettings& settings, int64_t gradient_groups = 1,
           Shard shard = {})
      : model(trained_model),
        gradient_buckets(trained_model.parameters(), gradient_groups, shard),
        optimizer_sync(shard.covers_all()
                           ? nullptr
                           : std::make_unique<ShardedOptimizerSync>(trained_model.parameters(), gradient_buckets)),
        sharded_blocks(trained_model.parameters().shard().covers_all()
                           ? nullptr
                           : std::make_unique<ShardedBlocks>(trained_model.parameters(), gradient_buckets)),
        optimizer(trained_model.parameters(), gradient_buckets, settings) {}

  /// Gradients are added up over the processes of `consensus` from now on, which must outlive this.
  void connect(const Consensus& consensus);

  models::VisionLanguageModel& model;
  GradientBuckets gradient_buckets;
  std::unique_ptr<ShardedOptimizerSync> optimizer_sync;  ///< of parts; null where this rank moves all weights
  std::unique_ptr<ShardedBlocks> sharded_blocks;         ///< null where this rank has all of their weights
  AdamW optimizer;
};

}  // namespace vlmtrain::engine

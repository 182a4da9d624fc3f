#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/engine/gradients/consensus.h"
#include "vlmtrain/engine/loss/objective.h"
#include "vlmtrain/engine/optimizer/adamw.h"
#include "vlmtrain/engine/settings/options.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/weights/lora_settings.h"
#include "vlmtrain/nn/weights/quantization.h"

namespace vlmtrain::planner {

/// The settings of a run that determine the memory and time of a step, except for its samples.
struct Job {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; weights are not read
  engine::Precision precision = engine::Precision::kBf16;
  models::FrozenParts frozen = {};
  std::optional<nn::LoraSettings> lora = std::nullopt;  ///< nullopt: full fine-tuning
  nn::Quantization quantization = nn::Quantization::kNone;
  kernels::KernelSet disabled_kernels = {};  ///< custom kernels that ATen replaces
  engine::AdamWSettings optimizer = {};      ///< has a loss scale if, and only if, the precision is fp16
  engine::ObjectiveSettings objective = {};  ///< samples of dry runs all belong to the first task
  int64_t world_size = 1;                    ///< ranks, one of which is dry-run
  int64_t rank = 0;                          ///< the rank that is dry-run
  int64_t nodes = 1;                         ///< machines, each with the same number of consecutive ranks
  engine::Sharding sharding = engine::Sharding::kNone;

  /// Returns the shard of moments and master weights.
  engine::Shard shard() const;
  /// Returns the shard of the weights of blocks.
  engine::Shard block_shard() const { return engine::shards_blocks(sharding) ? shard() : engine::Shard(); }
};

/// Returns the shardings that the job supports, in increasing order of the memory they save, starting
/// with kNone. PCGrad compares whole gradients and DoRA computes norms of whole weights, which rules
/// shardings out. `hybrid` differs from `full` only if nodes have several ranks each.
std::vector<engine::Sharding> list_possible_shardings(const Job& job);

/// Returns the job in another precision, with a loss scale if that is fp16.
Job with_precision(Job job, engine::Precision precision);

/// Returns the job's model on `device`, frozen according to the job. Weights have no values. Throws
/// UserError if the model's files are invalid.
std::unique_ptr<models::VisionLanguageModel> build_model(const Job& job, at::Device device);

}  // namespace vlmtrain::planner

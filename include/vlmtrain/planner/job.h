#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/engine/objective.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/engine/options.h"
#include "vlmtrain/engine/shard.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/nn/lora_settings.h"
#include "vlmtrain/nn/quantization.h"

namespace vlmtrain::planner {

/// What is trained and how, as far as the memory and time of a step depend on it.
struct Job {
  std::filesystem::path model;  ///< folder with config.json and the processor's settings; weights are not read
  engine::Precision precision = engine::Precision::kBf16;
  models::FrozenParts frozen = {};
  std::optional<nn::LoraSettings> lora = std::nullopt;  ///< nothing: the weights themselves are trained
  nn::Quantization quantization = nn::Quantization::kNone;
  kernels::KernelSet disabled_kernels = {};  ///< what ATen's operations do in the place of own kernels
  engine::AdamWSettings optimizer = {};      ///< with a loss scale if, and only if, the precision is fp16
  engine::ObjectiveSettings objective = {};  ///< rehearsed samples are all of the first task
  int64_t world_size = 1;                    ///< ranks, of which one is rehearsed
  int64_t rank = 0;                          ///< that one
  int64_t nodes = 1;                         ///< machines that they are on, as many on each, consecutively numbered
  engine::Sharding sharding = engine::Sharding::kNone;

  /// Of moments and master weights.
  engine::Shard shard() const;
  /// Of the weights of blocks.
  engine::Shard block_shard() const { return engine::shards_blocks(sharding) ? shard() : engine::Shard(); }
};

/// What the ranks of the job may share, in the order of what that saves; nothing at first. PCGrad compares whole
/// gradients, DoRA takes the lengths of whole weights, and `hybrid` is something of its own where nodes have several
/// ranks each.
std::vector<engine::Sharding> list_possible_shardings(const Job& job);

/// The same in another precision.
Job with_precision(Job job, engine::Precision precision);

/// The job's model on the device, frozen as the job says, without values. Throws UserError.
std::unique_ptr<models::VisionLanguageModel> build_model(const Job& job, at::Device device);

}  // namespace vlmtrain::planner

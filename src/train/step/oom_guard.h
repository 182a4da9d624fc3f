#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "vlmtrain/engine/step/step.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {

/// A completed step.
struct CompletedStep {
  engine::StepResult result;
  engine::StepLayout layout;              ///< of the successful attempt
  int64_t num_failed_attempts = 0;        ///< attempts that ran out of memory
  memory::DeviceMemoryStats memory = {};  ///< device memory after the step; set by StepRunner::run()
};

/// The error of a sample that does not fit into memory even alone and with full recomputation.
class OversizedSampleError : public std::runtime_error {
 public:
  /// `reason`: the out-of-memory error.
  OversizedSampleError(std::optional<int64_t> position, memory::MemoryKind memory_kind, const std::string& reason)
      : std::runtime_error(reason), position_(position), memory_kind_(memory_kind) {}
  /// Returns the index of the sample in this rank's part of the step; nullopt if another rank has
  /// it.
  std::optional<int64_t> position() const { return position_; }
  memory::MemoryKind memory_kind() const { return memory_kind_; }

 private:
  std::optional<int64_t> position_;
  memory::MemoryKind memory_kind_;
};

/// Returns the learning rates of a step. Called after its gradients are computed, by each attempt.
using LearningRatesFunction = std::function<engine::LearningRates()>;

/// The executor of single optimizer steps. If device or host memory runs out, it repeats the whole
/// step: it discards the gradients, empties caches, restores the random state and uses smaller
/// micro-batches. No weight has changed by then, and the loss is divided by the same number of
/// label tokens, so the result is the same up to rounding.
///
/// If an attempt fails on one rank, all ranks repeat it. Ranks on which it succeeded use the same
/// layout again. All ranks must call step() with the same step. Not thread-safe.
///
/// Each failure goes to the next level that applies: 0. the same layout, if memory for the driver
/// ran out, which the emptied cache may have held; 1. half the micro-batch size and no prefetched
/// copies; 2. full recomputation, one tile per vision pass and small loss chunks; 3. single
/// samples. Levels 0 and 1 are used once per step, so a device that always fails ends the run.
class OomGuard {
 public:
  /// Called for each failed attempt that is repeated, with the out-of-memory errors of all ranks
  /// and this rank's layout of the next attempt.
  using FailureHandler = std::function<void(const std::string& reason, const engine::StepLayout& next)>;

  /// The references must outlive the object.
  OomGuard(engine::TrainingState& training, at::Device device, const engine::Consensus& consensus,
           FailureHandler on_failure);

  /// Runs a step with this rank's `samples`, beginning with `layout`. `seed`: seed of the step's
  /// random stream. Throws OversizedSampleError on all ranks if a sample does not fit alone,
  /// UserError (kDoesNotFit) if the optimizer does not fit, and UserError (kFailed) if not even
  /// small allocations on the device succeed.
  CompletedStep step(const engine::Objective& objective, std::span<const data::Sample> samples,
                     const engine::StepLayout& layout, uint64_t seed,
                     const LearningRatesFunction& compute_step_learning_rates);

 private:
  /// The levels that a step has used and that are used only once.
  struct RecoveryState {
    bool has_emptied_cache = false;
    bool has_halved_micro_batch = false;
  };
  /// The result of an attempt on this rank.
  struct AttemptResult {
    bool is_done = false;  ///< on all ranks
    std::optional<engine::StepOutOfMemory> failure = {};
  };
  AttemptResult attempt_step(const engine::StepInput& input, const LearningRatesFunction& compute_step_learning_rates,
                             CompletedStep& completed);
  void release_attempt_memory(memory::MemoryKind memory_kind);
  engine::StepLayout choose_next_layout(const engine::StepLayout& failed_layout, const engine::StepOutOfMemory& error,
                                        RecoveryState& recovery_state) const;

  engine::TrainingState& training_;
  at::Device device_;
  const engine::Consensus& consensus_;
  FailureHandler on_failure_;
};

}  // namespace vlmtrain::train

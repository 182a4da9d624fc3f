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
  engine::StepLayout layout;  ///< of the successful attempt
  int64_t failed_attempts = 0;
  memory::DeviceMemory memory = {};  ///< after the step, with the peaks since their last reset
};

/// A sample that does not fit even alone and with full recomputation.
class OversizedSampleError : public std::runtime_error {
 public:
  OversizedSampleError(std::optional<int64_t> position, memory::MemoryKind memory_kind, const std::string& reason)
      : std::runtime_error(reason), position_(position), memory_kind_(memory_kind) {}
  /// Returns its position in the step; nullopt if it is another rank's sample.
  std::optional<int64_t> position() const { return position_; }
  memory::MemoryKind memory_kind() const { return memory_kind_; }

 private:
  std::optional<int64_t> position_;
  memory::MemoryKind memory_kind_;
};

/// Returns the learning rates of a step. Called once its gradients are computed.
using LearningRatesFunction = std::function<engine::LearningRates()>;

/// Runs optimizer steps, and repeats a whole step if device or host memory runs out: it drops
/// gradients, empties caches, restores the random state and uses smaller micro-batches. No weight
/// has changed by then and the loss is divided by the same label tokens, so the result is the same.
///
/// An attempt that failed on one rank is repeated on all ranks; ranks on which it succeeded repeat
/// it unchanged.
///
/// The levels: 0. the same layout once more, if the driver's memory may have been in the emptied
/// cache; 1. half the micro-batches and no prefetched copies; 2. full recomputation, small vision
/// passes and loss chunks; 3. single samples. Each level is tried once, so that a device that
/// always fails ends the run.
class OomGuard {
 public:
  /// Called for each failed attempt that is repeated.
  using OnFailure = std::function<void(const std::string& reason, const engine::StepLayout& next)>;

  /// The references must outlive the object.
  OomGuard(engine::Training& training, at::Device device, const engine::Consensus& consensus, OnFailure on_failure);

  /// Runs a step. `seed` is that of its random stream. Throws OversizedSampleError, UserError
  /// (kDoesNotFit) if the optimizer does not fit, and UserError (kFailed) if the device has
  /// no memory at all.
  CompletedStep step(const engine::Objective& objective, std::span<const data::Sample> samples,
                     const engine::StepLayout& layout, uint64_t seed, const LearningRatesFunction& compute_rates);

 private:
  /// The levels that a step has used.
  struct RecoveryState {
    bool cache_emptied = false;
    bool micro_batch_halved = false;
  };
  /// The result of an attempt on this rank.
  struct Attempt {
    bool is_done = false;  ///< on all ranks
    std::optional<engine::StepOutOfMemory> failure = {};
  };
  Attempt attempt(const engine::StepInput& input, const LearningRatesFunction& compute_rates, CompletedStep& completed);
  void recover(memory::MemoryKind memory_kind);
  engine::StepLayout next_layout(const engine::StepLayout& failed, const engine::StepOutOfMemory& error,
                                 RecoveryState& recovery) const;

  engine::Training& training_;
  at::Device device_;
  const engine::Consensus& consensus_;
  OnFailure on_failure_;
};

}  // namespace vlmtrain::train

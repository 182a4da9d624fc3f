#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>

#include "vlmtrain/engine/step.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::train {

/// A step that is done, and how.
struct CompletedStep {
  engine::StepResult result;
  engine::StepLayout layout;  ///< of the attempt that went through
  int64_t failed_attempts = 0;
  memory::DeviceMemory memory = {};  ///< as it was left, with the peaks since they were last reset
};

/// A sample that does not fit even alone, with everything recomputed.
class OversizedSampleError : public std::runtime_error {
 public:
  OversizedSampleError(std::optional<int64_t> position, memory::MemoryKind memory_kind, const std::string& reason)
      : std::runtime_error(reason), position_(position), memory_kind_(memory_kind) {}
  /// In the samples of the step; nothing where it is another process's.
  std::optional<int64_t> position() const { return position_; }
  memory::MemoryKind memory_kind() const { return memory_kind_; }

 private:
  std::optional<int64_t> position_;
  memory::MemoryKind memory_kind_;
};

/// Asked for a step's learning rates once its gradients are there.
using LearningRatesFunction = std::function<engine::LearningRates()>;

/// Does optimizer steps, and does a step over again, whole, where memory did not suffice, of the device or of the host:
/// gradients are dropped, caches emptied, the random state is what it was, and micro-batches are smaller. No weight had
/// changed, the loss is divided by the same label tokens, so the result is the same.
///
/// Where several processes train together, an attempt that failed in one of them is done again in all; those where it
/// went well do it as they did.
///
/// The levels: 0. as it was, once, where the driver lacked memory that the emptied cache may have been; 1.
/// micro-batches as large as the failed one are cut in two, and nothing is copied ahead; 2. everything is recomputed,
/// vision passes and loss chunks are small; 3. single samples. No level is taken twice, so a device that fails for good
/// fails the run.
class OomGuard {
 public:
  /// Hears of each failed attempt that is followed by another.
  using OnFailure = std::function<void(const std::string& reason, const engine::StepLayout& next)>;

  OomGuard(engine::Training& training, at::Device device, const engine::Consensus& consensus, OnFailure on_failure);

  /// `seed` is of the step's random stream. Throws OversizedSampleError, UserError (kDoesNotFit) where the optimizer's
  /// own memory does not suffice, and UserError (kFailed) where the device has no memory for anything any more.
  CompletedStep step(const engine::Objective& objective, std::span<const data::Sample> samples,
                     const engine::StepLayout& layout, uint64_t seed, const LearningRatesFunction& compute_rates);

 private:
  /// Levels of this step that were taken.
  struct RecoveryState {
    bool cache_emptied = false;
    bool micro_batch_halved = false;
  };
  /// How an attempt of this process ended, and of which failure.
  struct Attempt {
    bool is_done = false;  ///< in all processes
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

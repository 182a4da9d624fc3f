#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>

#include "vlmtrain/engine/step.h"

namespace vlmtrain::train {

/// A step that is done, and how.
struct GuardedStep {
  engine::StepResult result;
  engine::StepLayout layout;  ///< of the attempt that went through
  int64_t failed_attempts = 0;
};

/// A sample that does not fit even alone, with everything recomputed.
class SampleDoesNotFit : public std::runtime_error {
 public:
  SampleDoesNotFit(int64_t place, memory::Scarce scarce, const std::string& reason)
      : std::runtime_error(reason), place_(place), scarce_(scarce) {}
  /// In the samples of the step.
  int64_t place() const { return place_; }
  memory::Scarce scarce() const { return scarce_; }

 private:
  int64_t place_;
  memory::Scarce scarce_;
};

/// Does optimizer steps, and does a step over again, whole, where memory did not suffice, of the device or of the host:
/// gradients are dropped, caches emptied, the random state is what it was, and micro-batches are smaller. No weight had
/// changed, the loss is divided by the same label tokens, so the result is the same.
///
/// The levels: 0. as it was, once, where the driver lacked memory that the emptied cache may have been; 1.
/// micro-batches as large as the failed one are cut in two; 2. everything is recomputed, vision passes and loss chunks
/// are small; 3. single samples. No level is taken twice, so a device that fails for good fails the run.
class OomGuard {
 public:
  /// Hears of each failed attempt that is followed by another.
  using OnFailure = std::function<void(const std::string& reason, const engine::StepLayout& next)>;

  OomGuard(models::VisionLanguageModel& model, engine::GradientSums& sums, engine::AdamW& optimizer, at::Device device,
           OnFailure on_failure);

  /// `seed` is of the step's random stream. Throws SampleDoesNotFit, UserError (kDoesNotFit) where the optimizer's own
  /// memory does not suffice, and UserError (kFailed) where the device has no memory for anything any more.
  GuardedStep step(std::span<const data::Sample> samples, const engine::StepLayout& layout, uint64_t seed,
                   const engine::RatesSource& rates, const engine::TaskSettings& tasks = {});

 private:
  /// Levels of this step that were taken.
  struct Taken {
    bool emptied = false;
    bool halved = false;
  };
  void recover(memory::Scarce scarce);
  engine::StepLayout next_layout(const engine::StepLayout& failed, const engine::StepOutOfMemory& error,
                                 Taken& taken) const;

  models::VisionLanguageModel& model_;
  engine::GradientSums& sums_;
  engine::AdamW& optimizer_;
  at::Device device_;
  OnFailure on_failure_;
};

}  // namespace vlmtrain::train

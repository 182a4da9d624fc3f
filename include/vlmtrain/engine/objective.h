#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "vlmtrain/data/micro_batch.h"
#include "vlmtrain/data/sample.h"
#include "vlmtrain/engine/cut.h"
#include "vlmtrain/engine/mask_losses.h"
#include "vlmtrain/engine/step_layout.h"
#include "vlmtrain/engine/tasks.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::engine {

class GradientBuckets;

/// What each term of a loss is divided by: sums over the samples of a global batch, so that the losses and gradients of
/// micro-batches add up to those of the whole, wherever it is cut.
using Normalizers = std::vector<double>;

/// What an objective says of a step beside the loss.
struct ObjectiveMetrics {
  std::vector<TaskResult> tasks;    ///< empty where tasks are not told apart
  std::optional<MaskLosses> masks;  ///< of a model that draws masks
};

/// An objective over the micro-batches of one step, on the model's device.
class StepLoss {
 public:
  StepLoss() = default;
  virtual ~StepLoss() = default;
  StepLoss(const StepLoss&) = delete;
  StepLoss& operator=(const StepLoss&) = delete;

  /// Runs the model forward over samples of the step that are together in a micro-batch, on the device. → What they add
  /// to the loss, an fp32 scalar, with its graph.
  virtual at::Tensor forward(const data::MicroBatch& batch) = 0;

  /// What is summed up beside the loss and has to be added up over all processes before scalars() is asked for.
  virtual std::vector<at::Tensor> sums() const { return {}; }
  /// fp32 [numbers] that Objective::metrics() reads; undefined where there are none.
  virtual at::Tensor scalars() const { return {}; }
};

/// What a training minimises. One of these for a run or, where it changes on the way, for each step.
class Objective {
 public:
  Objective() = default;
  virtual ~Objective() = default;
  Objective(const Objective&) = delete;
  Objective& operator=(const Objective&) = delete;

  /// Of these samples; a step's are the sums over all processes.
  virtual Normalizers normalizers(std::span<const data::Sample> samples) const = 0;
  /// What no cut of these samples may do.
  virtual SplitConstraint split_constraint(std::span<const data::Sample> /*samples*/) const { return {}; }

  /// The samples at these places as one micro-batch with all that the loss needs, on the host.
  virtual data::MicroBatch collate(std::span<const data::Sample> samples, std::span<const int64_t> indices) const {
    return data::collate(samples, indices);
  }
  /// Begins a step. All memory that its sums take is allocated here. `model` must outlive it; of `layout` the loss
  /// takes its chunks. Throws InternalError where there is nothing to divide by.
  virtual std::unique_ptr<StepLoss> begin_step(const models::VisionLanguageModel& model, const Normalizers& normalizers,
                                               const StepLayout& layout) const = 0;

  /// How many gradients are summed up apart from each other: one for each group of the cut rule, or one in all.
  virtual int64_t gradient_groups() const { return 1; }
  /// Makes one gradient of several, in the place of the first. REQUIRES: gradient_groups() > 1.
  virtual void combine_gradients(GradientBuckets& /*sums*/) const {}

  /// Of each task; empty where tasks are not told apart.
  virtual std::vector<TaskCounts> counts(std::span<const data::Sample> /*samples*/) const { return {}; }
  /// Reads StepLoss::scalars() of samples with these counts.
  virtual ObjectiveMetrics metrics(std::span<const double> /*numbers*/,
                                   const std::vector<TaskCounts>& /*counts*/) const {
    return {};
  }
  /// Of each task's label tokens in the loss; empty: 1.
  virtual std::vector<double> task_weights() const { return {}; }
};

/// What a job says of its objective.
struct ObjectiveSettings {
  TaskSettings tasks = {};
  std::optional<MaskLossWeights> masks = std::nullopt;  ///< of a model that draws masks; nothing: words alone
};

std::unique_ptr<const Objective> make_objective(const ObjectiveSettings& settings);

}  // namespace vlmtrain::engine

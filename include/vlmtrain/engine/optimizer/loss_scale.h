#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/engine/settings/optimizer_settings.h"

namespace vlmtrain::engine {

/// A loss scale, which keeps small gradients from underflowing in fp16 (Micikevicius et al. 2017,
/// arXiv 1710.03740). As in torch.amp.GradScaler, a dynamic scale is halved after a step with
/// overflowing gradients, which is skipped, and doubled after `growth_interval` consecutive steps
/// without an overflow. The scale is on the device, and the host never reads it. Not thread-safe.
class LossScale {
 public:
  /// Creates the scale on the device of `options`.
  LossScale(const LossScaleSettings& settings, at::TensorOptions options);

  /// Returns the fp32 scalar, which update() changes in place.
  const at::Tensor& value() const { return scale_; }

  /// Updates the scale after a step. `skipped` is an fp32 scalar on the device: 1 if the gradients
  /// overflowed, else 0. Allocates nothing.
  void update(const at::Tensor& skipped);

  /// Returns `loss_scale` (fp32 scalar) and `loss_scale_good_steps` (int32 scalar), not copies.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  LossScaleSettings settings_;
  at::Tensor scale_;
  at::Tensor steps_without_overflow_;  // int32 scalar; counted since the scale last changed
};

}  // namespace vlmtrain::engine

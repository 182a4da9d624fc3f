#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::engine {

/// The settings of a loss scale.
struct LossScaleSettings {
  double initial = 65536;
  bool dynamic = true;          ///< false: constant
  int64_t growth_steps = 2000;  ///< steps without an overflow after which the scale doubles
};

/// A loss scale, which keeps small gradients from underflowing in fp16 (Micikevicius et al. 2017,
/// arXiv 1710.03740). A dynamic scale is halved after each step with overflowing gradients, which
/// is skipped, and doubled after `growth_steps` others, as torch.amp.GradScaler's. It lives on the
/// device and is never read back.
class LossScale {
 public:
  /// `options`: the device.
  LossScale(const LossScaleSettings& settings, at::TensorOptions options);

  /// Returns the fp32 scalar, which update() changes in place.
  const at::Tensor& value() const { return value_; }

  /// Updates the scale after a step. `skipped`: fp32 scalar, 0 or 1. Allocates nothing.
  void update(const at::Tensor& skipped);

  /// Returns `loss_scale` (fp32 scalar) and `loss_scale_good_steps` (int32 scalar), not copies.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  LossScaleSettings settings_;
  at::Tensor value_;
  at::Tensor good_steps_;  // int32 scalar: steps since the scale last changed
};

}  // namespace vlmtrain::engine

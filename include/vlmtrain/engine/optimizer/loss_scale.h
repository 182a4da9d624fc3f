#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorOptions.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace vlmtrain::engine {

struct LossScaleSettings {
  double initial = 65536;
  bool dynamic = true;          ///< false: `initial` throughout
  int64_t growth_steps = 2000;  ///< steps without an overflow after which the scale doubles
};

/// What the loss is multiplied by before the backward pass, so that small gradients do not vanish in fp16 (Micikevicius
/// et al. 2017, arXiv 1710.03740). A dynamic scale halves with each step whose gradients overflow, which is skipped,
/// and doubles after `growth_steps` others, as torch.amp.GradScaler's. It lives on the device and is never read back.
class LossScale {
 public:
  LossScale(const LossScaleSettings& settings, at::TensorOptions options);

  /// fp32 scalar. The optimizer's own, which update() changes.
  const at::Tensor& value() const { return value_; }

  /// After a step; `skipped` is an fp32 scalar, 0 or 1. Allocates nothing.
  void update(const at::Tensor& skipped);

  /// For a checkpoint: `loss_scale` (fp32 scalar) and `loss_scale_good_steps` (int32 scalar). Not copies.
  std::vector<std::pair<std::string, at::Tensor>> state() const;

 private:
  LossScaleSettings settings_;
  at::Tensor value_;
  at::Tensor good_steps_;  // int32 scalar: since the scale last changed
};

}  // namespace vlmtrain::engine

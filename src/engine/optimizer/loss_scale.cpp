#include "vlmtrain/engine/optimizer/loss_scale.h"

#include <ATen/ops/_amp_update_scale.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

namespace vlmtrain::engine {

namespace {

// As in torch.amp.GradScaler.
constexpr double kGrowthFactor = 2.0;
constexpr double kBackoffFactor = 0.5;

}  // namespace

LossScale::LossScale(const LossScaleSettings& settings, at::TensorOptions options)
    : settings_(settings),
      scale_(at::full({}, settings.init_scale, options.dtype(at::kFloat))),
      steps_without_overflow_(at::zeros({}, options.dtype(at::kInt))) {}

void LossScale::update(const at::Tensor& skipped) {
  if (!settings_.dynamic) return;
  at::_amp_update_scale_(scale_, steps_without_overflow_, skipped, kGrowthFactor, kBackoffFactor,
                         settings_.growth_interval);
}

std::vector<std::pair<std::string, at::Tensor>> LossScale::state() const {
  return {{"loss_scale", scale_}, {"loss_scale_good_steps", steps_without_overflow_}};
}

}  // namespace vlmtrain::engine

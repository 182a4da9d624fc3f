#pragma once

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/mm.h>
#include <ATen/ops/tanh.h>

#include "vlmtrain/models/model.h"

namespace vlmtrain::parity {

/// Returns the model's logits of `hidden` [rows, hidden], [rows, vocabulary], in their dtype and with
/// gradients, which nn::compute_logits() does not have.
inline at::Tensor compute_logits(const models::VisionLanguageModel& model, const at::Tensor& hidden) {
  const nn::OutputProjection projection = model.output_projection();
  const at::Tensor logits = at::mm(hidden, projection.weight.t());
  const double cap = projection.logit_soft_cap;
  return cap > 0 ? at::tanh(logits / cap) * cap : logits;
}

}  // namespace vlmtrain::parity

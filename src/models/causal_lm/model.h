#pragma once

#include <memory>

#include "models/causal_lm/config.h"
#include "vlmtrain/models/model.h"

namespace vlmtrain::models::causal_lm {

/// Returns a model without vision tower and projector. Parameter names and checkpoint tensor names
/// are those of transformers' …ForCausalLM: `model.layers…` and, unless it is tied, `lm_head`.
std::unique_ptr<VisionLanguageModel> make_model(const Config& config, const nn::ParameterSettings& settings);

}  // namespace vlmtrain::models::causal_lm

#pragma once

#include <string>
#include <string_view>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models {

using nn::Activation;

/// Returns the activation that transformers calls `name`. `key` and `source`, the file, are named
/// in errors. Throws UserError (kBadData) for an unsupported name.
Activation parse_activation(std::string_view name, std::string_view key, const std::string& source);

/// Computes the activation. Only x is saved for the backward pass.
at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace vlmtrain::models

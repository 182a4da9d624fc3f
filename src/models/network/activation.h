#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "vlmtrain/nn/layers/activation.h"

namespace vlmtrain::models {

using nn::Activation;

/// Returns the activation named by `key` of the file `source`. Throws UserError (kBadData), which
/// lists the supported ones.
Activation parse_activation(std::string_view name, std::string_view key, const std::string& source);

/// Computes the activation. Only x is saved for the backward pass.
at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace vlmtrain::models

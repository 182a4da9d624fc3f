#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <string_view>

#include "vlmtrain/nn/activation.h"

namespace vlmtrain::models {

using nn::Activation;

/// The activation that `name` stands for under `key` of the file `source`. Throws UserError (kBadData) that lists the
/// known ones.
Activation parse_activation(std::string_view name, std::string_view key, const std::string& source);

/// Its values; only x is kept for the backward pass.
at::Tensor activate(Activation activation, const at::Tensor& x);

}  // namespace vlmtrain::models

#pragma once

#include <ATen/core/Tensor.h>

#include "models/network/volume_transformer/volume_transformer_config.h"

namespace vlmtrain::models::brain_llava {

/// The means over the regions of PyTorch's adaptive_avg_pool3d, as a matrix [tokens, patches] of `options`: a product
/// with it sums in one order, where the pooling's own backward pass may add up in any. REQUIRES: on no axis more tokens
/// than patches.
at::Tensor make_pooling_matrix(const VolumeAxes& tokens, const VolumeAxes& patches, const at::TensorOptions& options);

/// `features` [rows · patches, hidden] → [rows · tokens, hidden], volume by volume.
at::Tensor pool(const at::Tensor& features, const VolumeAxes& tokens, const VolumeAxes& patches);

}  // namespace vlmtrain::models::brain_llava

#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>

#include "models/prs_med/mask_source.h"

namespace vlmtrain::models::prs_med {

/// Returns `image_size`, `vision_encoder` and `mask_decoder` of a mask_config for a mask model,
/// from its config.json or from the shapes of its tensors. The published models' sizes replace
/// those of missing tensors. `side`: the input side of TinyViT, which supports any. Throws
/// UserError (kBadData) for a missing config.json or one that is not of SamModel.
nlohmann::ordered_json read_mask_sizes(const TensorSource& tensors, MaskLayout layout, int64_t side);

}  // namespace vlmtrain::models::prs_med

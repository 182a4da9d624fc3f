#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>

#include "models/prs_med/mask_source.h"

namespace vlmtrain::models::prs_med {

/// `image_size`, `vision_encoder` and `mask_decoder` of a mask_config, as a mask model has them: as its config.json
/// says, or as the shapes of its tensors tell. Where a tensor that tells is missing, the published models' sizes stand
/// for it. `side`: that of TinyViT, which takes pictures of any. Throws UserError (kBadData) where a config.json is
/// missing or not of SamModel.
nlohmann::ordered_json read_mask_sizes(const TensorSource& tensors, MaskLayout layout, int64_t side);

}  // namespace vlmtrain::models::prs_med

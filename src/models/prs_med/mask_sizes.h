#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>

#include "models/prs_med/mask_source.h"

namespace vlmtrain::models::prs_med {

/// Returns `image_size`, `vision_encoder` and `mask_decoder` of a mask_config for a mask model.
/// They are read from config.json for MaskCheckpointFormat::kTransformers, else derived from the shapes of
/// the tensors; missing tensors are assumed to have the published sizes. `side` is the image_size
/// of a MobileSAM, in pixels, which does not follow from shapes. Throws UserError (kBadData) for a
/// missing config.json or one of another model than SamModel.
nlohmann::ordered_json read_mask_sizes(const TensorSource& tensors, MaskCheckpointFormat format, int64_t side);

}  // namespace vlmtrain::models::prs_med

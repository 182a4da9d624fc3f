#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <vector>

#include "io/media_places.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// The masks under a record's "mask" or "masks": one or a list, each
/// - a path or bytes, as of a picture;
/// - {"path" or "bytes", "value", "structure", "image"}, all but the first optional;
/// - a COCO run-length encoding {"size": [height, width], "counts"}, with "structure" and "image" beside it or around
///   it: {"rle": {…}}; "segmentation" is COCO's own name for "rle".
/// "structure" may be called "label". Relative paths are found from `root` on; `num_images` is how many pictures the
/// record has. data_error for what is none of these.
std::vector<MaskSource> parse_masks(const nlohmann::json& record, const ImageRoot& root, size_t num_images);

}  // namespace vlmtrain::io

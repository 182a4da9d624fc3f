#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstddef>
#include <vector>

#include "io/record/media_slots.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Returns the masks under "mask" or "masks" of a record. Each is
/// - a path or bytes, as for an image;
/// - {"path" or "bytes", "value", "structure", "image"}, of which all but the first are optional;
/// - a COCO run-length encoding {"size": [height, width], "counts"} with optional "structure" and
///   "image", or such an encoding under "rle" or "segmentation".
/// "label" is an alias of "structure". Relative paths start at `root`. Throws data_error for other
/// values, and for an "image" index of `num_images` or more.
std::vector<MaskSource> parse_masks(const nlohmann::json& record, const ImageRoot& root, size_t num_images);

/// Returns the images under "image" or "images" of a record or a turn, or the volumes under
/// "volume" or "volumes". A number under "volume" is ignored: it is an amount of something else.
/// Throws data_error if both are given, because the order of their placeholders is unknown.
std::vector<MediaRef> parse_images_or_volumes(const nlohmann::json& value);

/// Same as parse_images_or_volumes() for a record. Sets the kind that messages of `media_slots`
/// name.
std::vector<MediaRef> parse_record_images(const nlohmann::json& value, MediaSlots& media_slots);

/// Sets the modality of each volume ("modality": one text for all or a list) and the subjects of
/// the record ("subject_id": one text or a list). Images with the extension of a NIfTI file become
/// volumes.
void set_volume_metadata(const nlohmann::json& value, Record& record);

}  // namespace vlmtrain::io

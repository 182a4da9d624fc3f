#pragma once

#include <cstddef>
#include <vector>

#include "io/record/media_slots.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Returns the masks under "mask" or "masks" of a record. Each is
/// - a path or bytes, as for an image;
/// - an object with "path" or "bytes", and optional "value", "structure" and "image" (MaskSource);
/// - a COCO run-length encoding {"size": [height, width], "counts"} with optional "structure" and
///   "image";
/// - an object with a run-length encoding under "rle" or "segmentation".
/// "label" is an alias of "structure". Relative paths are resolved against `root`. Throws
/// data_error for other values, and for an "image" index of `num_images` or more.
std::vector<MaskSource> parse_masks(const RecordJson& record, const ImageRoot& root, size_t num_images);

/// Returns the images under "image" or "images" of a record or a turn, or the volumes under
/// "volume" or "volumes". A number or boolean under "volume" is ignored, because it is a quantity.
/// Throws data_error if there are images and volumes: both have the placeholder <image>, so their
/// order is unknown.
std::vector<MediaRef> parse_images_or_volumes(const RecordJson& value);

/// Same as parse_images_or_volumes() for a record. Also sets the kind of `media_slots` to
/// kVolumeKind if the record has volumes.
std::vector<MediaRef> parse_record_images(const RecordJson& value, MediaSlots& media_slots);

/// Sets the modality of each volume of `record` and Record::subject_ids from the JSON object
/// `value`. "modality" is one text for all volumes or a list with one per volume; "subject_id" is
/// one text or a list. Images with the extension of a NIfTI file become volumes. Does nothing for a
/// record without volumes. Throws data_error for other values.
void set_volume_metadata(const RecordJson& value, Record& record);

}  // namespace vlmtrain::io

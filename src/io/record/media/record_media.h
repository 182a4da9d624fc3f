#pragma once

#include "io/record/media/media_slots.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Sets Record::masks from "mask" or "masks" of a record, after its images. Each is
/// - a path or bytes, as for an image;
/// - an object with "path" or "bytes", and optional "value", "structure" and "image" (MaskSource);
/// - a COCO run-length encoding {"size": [height, width], "counts"} with optional "structure" and
///   "image";
/// - an object with a run-length encoding under "rle" or "segmentation".
/// "label" is an alias of "structure". Relative paths are resolved against `root`. Other values, and
/// an "image" index beyond the images, become Record::mask_problem.
void set_masks(const RecordJson& record_json, const ImageRoot& root, Record& record);

/// Sets the modality of each volume of `record` and Record::subject_ids from the JSON object
/// `value`. "modality" is one text for all volumes or a list with one per volume; "subject_id" is
/// one text or a list. Images with the extension of a NIfTI file become volumes. Does nothing for a
/// record without volumes. Throws data_error for other values.
void set_volume_metadata(const RecordJson& value, Record& record);

}  // namespace vlmtrain::io

#pragma once

#include <nlohmann/json.hpp>

#include <vector>

#include "io/media_places.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// What stands at a record's image marks: pictures under "image" or "images", or volumes under "volume" or "volumes".
/// data_error for a record that lists both: nothing says which mark is whose.
std::vector<MediaRef> parse_record_images(const nlohmann::json& value, MediaSlots& media_slots);

/// The same of a record or a turn, without places. A number under "volume" is an amount of something else.
std::vector<MediaRef> parse_images_or_volumes(const nlohmann::json& value);

/// Says of each of the record's volumes its modality ("modality": one for all, or a list), and of the record whom it
/// shows ("subject_id": one, or a list). A picture that is named like NIfTI (.nii, .nii.gz) is a volume, too.
void set_volume_metadata(const nlohmann::json& value, Record& record);

}  // namespace vlmtrain::io

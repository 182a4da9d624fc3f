#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// What the data says of a record's volume, for captions: "T1w, sub-01"; its `index` is that among Record::images.
/// Empty where it says nothing.
std::string describe_volume(const Record& record, size_t index);

/// The record's volumes. A picture that is named like NIfTI (.nii, .nii.gz) becomes one.
std::vector<MediaRef*> find_volumes(Record& record);

/// Gives volumes their modalities, one for all or one for each; false, with nothing done, for another number of them.
bool assign_modalities(std::span<MediaRef* const> volumes, std::span<const std::string> modalities);

}  // namespace vlmtrain::io

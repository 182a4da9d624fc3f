#pragma once

#include <filesystem>
#include <memory>

#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Returns the records of a WebDataset tar: its files that have all but what follows the first dot of their names in
/// common, in letters of any case. Of the record "a" are
///   a.json               its fields, as in JSON Lines
///   a.txt                its "caption", unless a.json has one; a.question.txt and others: fields for data.columns
///   a.jpg, a.0.jpg ...   its pictures (jpg, jpeg, png, webp; others are bad samples), in the order in which a.json
///                        names them, else in natural order
///   a.mask.png ...       its "masks" (tar_part.h), unless a.json names them as its images
///   a.mp4 ...            its videos (mp4, mkv, webm, avi, mov)
///   a.nii.gz             its volumes
/// Files that are none of these, or that are not used, are notices of their record; audio makes it unusable.
/// The tar is gone through once for the places of its files; each record's are read when it is asked for. A record has
/// a problem where a file is cut off, is there twice, or cannot be read. Throws as for_each_tar_member().
std::shared_ptr<const Records> open_tar(const std::filesystem::path& path, const RecordSettings& settings);

}  // namespace vlmtrain::io

#pragma once

#include <filesystem>
#include <memory>

#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Opens a WebDataset tar. Files that share the name up to its first dot, in any case of the
/// extension, are one record. Files of the record "a":
///   a.json              its fields, as in JSON Lines
///   a.txt               its "caption", unless a.json has one
///   a.question.txt …    its fields, if data.columns names the extension ("question.txt")
///   a.jpg, a.0.jpg …    its images (formats that decode_image() reads; others make bad samples), in the
///                       order of a.json's list, else in natural order
///   a.mask.png …        its "masks" (tar_archive.h), unless a.json lists them as images
///   a.mp4 …             its videos (mp4, mkv, webm, avi, mov)
///   a.nii.gz            its volumes
///
/// Files that are not used become notices of the record; audio becomes its problem. The headers of
/// the tar are read once, contents on demand. A record has a problem if one of its files is
/// truncated, occurs twice or cannot be read. Throws as for_each_tar_member().
std::shared_ptr<const Records> open_tar_records(const std::filesystem::path& path, const RecordSettings& settings);

}  // namespace vlmtrain::io

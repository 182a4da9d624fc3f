#pragma once

#include <filesystem>
#include <memory>

#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// The records of a WebDataset tar: its files that have all but what follows the first dot of their names in common.
/// Of the record "a" are
///   a.json               its fields, as in JSON Lines
///   a.txt                its "caption", unless a.json has turns; a.question.txt and others: fields for data.columns
///   a.jpg, a.0.jpg ...   its pictures (jpg, jpeg, png, webp; others are bad samples), in the order in which a.json
///   names them, else in natural
///                        order
///   a.mp4 ...            its videos (mp4, mkv, webm, avi, mov)
/// The tar is gone through once for the places of its files; each record's are read when it is asked for. A record has
/// a problem where a file is cut off, is there twice, or cannot be read. Errors as for_each_member().
std::shared_ptr<const Records> open_tar(const std::filesystem::path& file, const RecordSettings& settings);

}  // namespace vlmtrain::io

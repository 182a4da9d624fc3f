#pragma once

#include <filesystem>
#include <memory>

#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Opens a JSON array or JSON Lines file. Memory has 12 bytes per record; each record is read and
/// parsed on demand. The offsets of files of 256 MiB and more are kept for later runs
/// (record_offsets.h). A record that is not JSON has a problem. Throws as find_record_offsets().
std::shared_ptr<const Records> open_json(const std::filesystem::path& path, const RecordSettings& settings);

}  // namespace vlmtrain::io

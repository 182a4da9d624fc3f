#pragma once

#include <filesystem>
#include <memory>

#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// The records of a JSON array or of JSON Lines, which stay in their file: 12 bytes a record are kept, and each is read
/// and parsed when it is asked for. Where they lie is found in one pass, which a file of 256 MB and more needs only
/// once (json_index.h). Errors as find_record_offsets(); a record that is not JSON is one with a problem.
std::shared_ptr<const Records> open_json(const std::filesystem::path& path, const RecordSettings& settings);

}  // namespace vlmtrain::io

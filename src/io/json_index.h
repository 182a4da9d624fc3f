#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

#include "io/json_places.h"

namespace vlmtrain::io {

/// Where an index of a file is kept from one start to the next: in VLMTRAIN_CACHE, else in the user's cache folder,
/// under a hash of the file's absolute path. Empty where there is no such folder.
std::filesystem::path get_json_index_path(const std::filesystem::path& file);

/// What write_json_index wrote for a file of the same stamp and size; nothing where the index is missing, of another
/// state of the file, or damaged.
std::optional<RecordOffsets> read_json_index(const std::filesystem::path& index, uint64_t stamp, uint64_t file_bytes);

/// Atomically. An index that cannot be written is a line in the log, no error.
void write_json_index(const std::filesystem::path& index, uint64_t stamp, const RecordOffsets& offsets);

}  // namespace vlmtrain::io

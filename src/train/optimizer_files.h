#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "vlmtrain/io/safetensors.h"

namespace vlmtrain::train {

/// Of a folder trainer_state: optimizer.safetensors, or of ranks that share the optimizer's state a file each,
/// optimizer-00001-of-00004.safetensors and so on. Throws UserError (kBadData) that names a part that is missing.
std::vector<std::filesystem::path> find_optimizer_files(const std::filesystem::path& trainer_state);

/// These, opened, each as all its headers say. Throws UserError (kBadData) that names a part which is another's, or of
/// another step than the first.
std::vector<io::SafetensorsFile> open_optimizer_files(const std::filesystem::path& trainer_state);
/// What an error calls them all.
std::string format_optimizer_files_name(const std::filesystem::path& trainer_state);

/// Of a part's file: what ties it to its place and to the others.
std::map<std::string, std::string> make_shard_metadata(int64_t rank, int64_t step);

/// `count` 1: the one file.
std::string make_optimizer_file_name(int64_t rank, int64_t count);

}  // namespace vlmtrain::train

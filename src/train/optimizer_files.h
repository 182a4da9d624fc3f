#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::train {

/// Of a folder trainer_state: optimizer.safetensors, or of ranks that share the optimizer's state a file each,
/// optimizer-00001-of-00004.safetensors and so on. Throws UserError (kBadData) that names a part that is missing.
std::vector<std::filesystem::path> optimizer_files(const std::filesystem::path& trainer_state);

/// `count` 1: the one file.
std::string optimizer_file_name(int64_t rank, int64_t count);

}  // namespace vlmtrain::train

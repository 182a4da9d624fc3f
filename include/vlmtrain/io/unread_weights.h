#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Returns one sentence for each group of weight files that CheckpointTensors does not read: shards
/// and their index next to model.safetensors, and shards that the index does not name. transformers
/// selects the same files.
std::vector<std::string> find_unread_weight_files(const std::filesystem::path& folder);

/// Describes the weights of a folder without model.safetensors and without an index, with a
/// suggestion. Returns "" if there are no other weights.
std::string describe_other_weights(const std::filesystem::path& folder);

}  // namespace vlmtrain::io

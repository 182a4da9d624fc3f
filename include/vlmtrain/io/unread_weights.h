#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace vlmtrain::io {

/// Returns a sentence for each set of weights in a checkpoint's folder that CheckpointTensors does not read although
/// it has the name of weights: shards and their index next to model.safetensors, shards that the index does not name.
/// What names which files are read and which are not. transformers chooses the same files.
std::vector<std::string> find_unread_weight_files(const std::filesystem::path& folder);

/// Returns what a folder without model.safetensors and without an index has instead, and what to do with it; empty
/// where there is nothing to say.
std::string describe_other_weights(const std::filesystem::path& folder);

}  // namespace vlmtrain::io

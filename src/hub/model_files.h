#pragma once

#include <filesystem>
#include <vector>

#include "hub/api.h"

namespace vlmtrain::hub {

/// Returns the configuration, tokenizer, and chat templates of a model: files of the kinds that
/// models/ reads.
std::vector<RepoFile> select_config_files(const std::vector<RepoFile>& files);

/// Returns the weights of a model or an adapter: model.safetensors, or the shards in
/// model.safetensors.index.json, which is read in `snapshot`; and adapter_model.safetensors.
/// Returns an empty list if there are none. Throws data_error if the index is invalid.
std::vector<RepoFile> select_weight_files(const std::vector<RepoFile>& files, const std::filesystem::path& snapshot);

}  // namespace vlmtrain::hub

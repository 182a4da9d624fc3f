#pragma once

#include <filesystem>
#include <vector>

#include "hub/api.h"

namespace vlmtrain::hub {

/// Throws data_error about `repo` if `files` are neither those of a model nor those of an adapter.
void check_has_config(const std::vector<RepoFile>& files, const Repo& repo);
/// Throws data_error about `repo` if `files` are not those of an adapter.
void check_is_adapter(const std::vector<RepoFile>& files, const Repo& repo);
/// Throws data_error about `repo` if a model has no tokenizer. An adapter needs none.
void check_has_tokenizer(const std::vector<RepoFile>& files, const Repo& repo);

/// Returns the configuration, tokenizer, and chat templates of a model: files of the kinds that
/// models/ reads.
std::vector<RepoFile> select_config_files(const std::vector<RepoFile>& files);

/// Returns the weights of a model or an adapter: model.safetensors, or the shards in
/// model.safetensors.index.json, which is read in `snapshot`; and adapter_model.safetensors.
/// Returns an empty list if there are none. Throws data_error if the index is invalid.
std::vector<RepoFile> select_weight_files(const std::vector<RepoFile>& files, const std::filesystem::path& snapshot);

}  // namespace vlmtrain::hub

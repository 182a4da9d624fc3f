#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "hub/api.h"
#include "vlmtrain/hub/repo.h"

namespace vlmtrain::hub {

/// Returns the files that describe a data set: README.md.
std::vector<RepoFile> select_metadata_files(const std::vector<RepoFile>& files);

/// Returns the data files of a split in natural order, as DatasetSnapshot describes. `snapshot` has
/// the metadata files. Throws UserError (kUsage).
std::vector<RepoFile> select_split_files(const std::vector<RepoFile>& files, const std::filesystem::path& snapshot,
                                         const DatasetReference& reference);

}  // namespace vlmtrain::hub

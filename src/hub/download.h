#pragma once

#include <string>
#include <vector>

#include "hub/api.h"
#include "hub/cache.h"

namespace vlmtrain::hub {

/// Downloads `files` of a commit into the cache, several at a time, and logs the progress. Each
/// content is hashed while it arrives, and gets its name after the hash was compared. A partial
/// content stays, and the next call continues it.
///
/// Throws run_error if the disk has too little space, make_hub_error(), and data_error if the
/// server sends other content than it lists.
void download_files(const HubSettings& settings, const Repo& repo, const std::string& commit, const RepoCache& cache,
                    const std::vector<RepoFile>& files);

}  // namespace vlmtrain::hub

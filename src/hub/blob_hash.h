#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "hub/api.h"
#include "hub/cache.h"
#include "vlmtrain/hub/http.h"

namespace vlmtrain::hub {

/// Returns a hash of the content of `file`: after all bytes, it equals file.etag().
std::unique_ptr<Hash> make_blob_hash(const RepoFile& file);

/// Returns those of `files` whose content in the cache has another hash than the Hub lists.
/// Reads several at a time. Ignores files that do not exist. Throws data_error if a file cannot be
/// read.
std::vector<RepoFile> find_damaged_files(const RepoCache& cache, const std::string& commit,
                                         const std::vector<RepoFile>& files);

/// Removes a file of a snapshot and its blob, unless another process has replaced it with an
/// undamaged one. Throws run_error.
void remove_damaged_file(const RepoCache& cache, const std::string& commit, const RepoFile& file);

}  // namespace vlmtrain::hub

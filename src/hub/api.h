#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "hub/connection.h"
#include "vlmtrain/hub/repo.h"

namespace vlmtrain::hub {

/// A file of a commit, as the Hub lists it.
struct RepoFile {
  std::string path{};        ///< relative, with slashes; is_safe_path() is true
  int64_t size = 0;          ///< in bytes
  std::string blob_id{};     ///< SHA-1 of the git blob, which is a pointer for files on LFS or Xet storage
  std::string lfs_sha256{};  ///< SHA-256 of the content on LFS or Xet storage; empty: the git blob is the content
  std::string xet_hash{};    ///< empty: not on Xet storage

  /// Returns the name of the content in the cache: the ETag of the Hub.
  const std::string& etag() const { return lfs_sha256.empty() ? blob_id : lfs_sha256; }

  bool operator==(const RepoFile&) const = default;
};

/// Returns true for a relative path that stays in its folder: its components are not empty, "." or
/// "..", and it has no control characters.
bool is_safe_path(const std::string& path);

/// Checks a file from the server or from the cache. Throws UserError (kFailed) about `source` if a
/// field is invalid.
void check_repo_file(const RepoFile& file, const std::string& source);

/// Returns the commit of repo.revision. Throws make_hub_error().
std::string resolve_commit(HubConnection& connection, const Repo& repo);

/// Returns the files of a commit, in the order of the server. Throws make_hub_error().
std::vector<RepoFile> list_files(HubConnection& connection, const Repo& repo, const std::string& commit);

/// Returns the URL of a file's content.
std::string make_file_url(const HubSettings& settings, const Repo& repo, const std::string& commit,
                          const std::string& path);

}  // namespace vlmtrain::hub

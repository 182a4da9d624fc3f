#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "hub/api.h"
#include "vlmtrain/hub/repo.h"

namespace vlmtrain::hub {

/// The folder of a repository in the Hugging Face cache, in the layout of huggingface_hub 2.4:
/// refs/REVISION (a commit), blobs/ETAG (contents), snapshots/COMMIT/PATH (links to blobs),
/// trees/COMMIT.json (the list of files), and ../.locks/REPO/ETAG.lock. Several processes may use
/// it, huggingface_hub among them.
class RepoCache {
 public:
  /// `cache` is the folder of all repositories. Creates nothing.
  RepoCache(const std::filesystem::path& cache, const Repo& repo);

  const std::filesystem::path& folder() const { return folder_; }
  std::filesystem::path get_snapshot_folder(const std::string& commit) const;
  std::filesystem::path get_blob_path(const RepoFile& file) const;
  /// Returns the path of the blob while it is downloaded.
  std::filesystem::path get_partial_path(const RepoFile& file) const;

  /// Returns the commit of a branch or tag when it was last resolved.
  std::optional<std::string> read_ref(const std::string& revision) const;
  /// Stores the commit of a branch or tag. Does nothing for a commit.
  void write_ref(const std::string& revision, const std::string& commit) const;

  /// Returns the files of a commit in the order of their paths, or nothing if the list is unknown
  /// or invalid.
  std::optional<std::vector<RepoFile>> read_tree(const std::string& commit) const;
  void write_tree(const std::string& commit, const std::vector<RepoFile>& files) const;

  /// Returns true if the snapshot has the content of the file.
  bool has_file(const std::string& commit, const RepoFile& file) const;
  /// Returns the path of the content of a file: the snapshot's, or a blob that the snapshot does not
  /// refer to yet. Returns nothing if neither has the file's size.
  std::optional<std::filesystem::path> find_content(const std::string& commit, const RepoFile& file) const;
  /// Removes the partial content of a file whose download another program finished. REQUIRES:
  /// the blob exists.
  void remove_partial_blob(const RepoFile& file) const;
  /// Lets the snapshot's path refer to the blob. REQUIRES: the blob exists.
  void link_file(const std::string& commit, const RepoFile& file) const;

 private:
  friend class BlobLock;

  std::filesystem::path folder_;
  std::filesystem::path locks_;
};

/// Throws run_error if `path`, a file of the cache, is a folder.
void check_is_not_folder(const std::filesystem::path& path);

/// The lock of a blob, which its writer holds, as in huggingface_hub. The constructor waits while
/// another process holds it. Throws run_error.
class BlobLock {
 public:
  BlobLock(const RepoCache& cache, const RepoFile& file);
  ~BlobLock();
  BlobLock(const BlobLock&) = delete;
  BlobLock& operator=(const BlobLock&) = delete;

 private:
  int descriptor_;
};

}  // namespace vlmtrain::hub

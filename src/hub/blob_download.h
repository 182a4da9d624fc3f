#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "hub/api.h"
#include "hub/cache.h"
#include "hub/connection.h"

namespace vlmtrain::hub {

/// Counters of a download that several threads share.
struct DownloadProgress {
  std::atomic<int64_t> bytes = 0;         ///< on the disk, those of earlier calls included
  std::atomic<bool> should_stop = false;  ///< set after a failure, so that other threads end
};

/// A partial content on the disk: blobs/ETAG.vlmtrain.incomplete. Not thread-safe.
class PartialBlob {
 public:
  /// Opens or creates the file and hashes its bytes. Throws run_error. REQUIRES: the caller holds
  /// the blob's lock.
  PartialBlob(const RepoCache& cache, const RepoFile& file);
  ~PartialBlob();
  PartialBlob(const PartialBlob&) = delete;
  PartialBlob& operator=(const PartialBlob&) = delete;

  int64_t size() const { return size_; }
  /// Appends bytes. Throws run_error, also if the disk is full.
  void append(std::string_view bytes);
  /// Removes all bytes.
  void clear();
  /// Flushes the content and gives it its name if its hash is that of the file. Returns false and
  /// removes all bytes if not. REQUIRES: size() == file.size; called until it returns true.
  bool commit();

 private:
  const RepoFile& file_;
  std::filesystem::path destination_path_;
  std::filesystem::path path_;
  int descriptor_ = -1;
  int64_t size_ = 0;
  std::unique_ptr<Hash> hash_;
};

/// Makes the blob of a file exist: downloads it unless it does. Returns early if
/// progress.should_stop. Throws as download_files().
void download_blob(HubConnection& connection, const Repo& repo, const std::string& commit, const RepoCache& cache,
                   const RepoFile& file, DownloadProgress& progress);

}  // namespace vlmtrain::hub

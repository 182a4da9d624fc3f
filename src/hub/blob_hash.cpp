#include "hub/blob_hash.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <exception>
#include <fstream>
#include <mutex>
#include <system_error>
#include <thread>

#include "hub/connection.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

namespace {

/// Files that are hashed at a time. Not tuned.
constexpr size_t kMaxHashThreads = 8;

/// Throws data_error if the file cannot be read.
bool is_damaged(const fs::path& path, const RepoFile& file) {
  const auto hash = make_blob_hash(file);
  std::ifstream stream(path, std::ios::binary);
  std::string buffer(size_t{1} << 20U, '\0');
  while (stream) {
    stream.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    hash->add({buffer.data(), static_cast<size_t>(stream.gcount())});
  }
  if (!stream.eof())
    throw data_error("{}: cannot be read; check the disk, or remove the file and download it again", path.string());
  return hash->to_hex() != file.etag();
}

}  // namespace

std::unique_ptr<Hash> make_blob_hash(const RepoFile& file) {
  auto hash = get_http_library().make_hash(file.lfs_sha256.empty() ? HashFunction::kSha1 : HashFunction::kSha256);
  // git hashes a blob with this header (git-hash-object).
  if (file.lfs_sha256.empty()) hash->add(fmt::format("blob {}{}", file.size, '\0'));
  return hash;
}

std::vector<RepoFile> find_damaged_files(const RepoCache& cache, const std::string& commit,
                                         const std::vector<RepoFile>& files) {
  std::vector<RepoFile> damaged;
  std::exception_ptr failure;
  std::mutex mutex;  // guards the variables above
  std::atomic<size_t> next_file = 0;
  const auto check_files = [&] {
    try {
      for (size_t i = next_file++; i < files.size(); i = next_file++) {
        const auto content = cache.find_content(commit, files[i]);
        if (!content || !is_damaged(*content, files[i])) continue;
        const std::lock_guard lock(mutex);
        damaged.push_back(files[i]);
      }
    } catch (...) {
      const std::lock_guard lock(mutex);
      failure = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> threads;
    for (size_t i = 0; i < std::min(kMaxHashThreads, files.size()); ++i) threads.emplace_back(check_files);
  }
  if (failure) std::rethrow_exception(failure);
  return damaged;
}

void remove_damaged_file(const RepoCache& cache, const std::string& commit, const RepoFile& file) {
  const BlobLock lock(cache, file);
  const auto content = cache.find_content(commit, file);
  if (!content || !is_damaged(*content, file)) return;
  for (const fs::path& path : {cache.get_snapshot_folder(commit) / file.path, cache.get_blob_path(file)}) {
    std::error_code error;
    fs::remove(path, error);
    if (error) throw io::make_write_error(path, error.value(), 0);
  }
}

}  // namespace vlmtrain::hub

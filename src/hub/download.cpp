#include "hub/download.h"

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "hub/blob_download.h"
#include "hub/connection.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

namespace {

/// Files at a time, as in huggingface_hub.
constexpr size_t kMaxThreads = 8;
/// Pause between two lines of progress.
constexpr std::chrono::seconds kProgressInterval{10};

/// Returns the bytes that are not on the disk yet.
int64_t count_missing_bytes(const RepoCache& cache, const std::vector<RepoFile>& files) {
  int64_t bytes = 0;
  for (const RepoFile& file : files) {
    bytes += file.size;
    for (const fs::path& path : {cache.get_blob_path(file), cache.get_partial_path(file)}) {
      std::error_code error;
      const auto present = fs::file_size(path, error);
      if (!error) bytes -= std::min(file.size, static_cast<int64_t>(present));
    }
  }
  return std::max<int64_t>(bytes, 0);
}

void check_disk_space(const RepoCache& cache, const Repo& repo, int64_t missing_bytes) {
  fs::path folder = cache.folder();
  std::error_code error;
  while (!fs::exists(folder, error) && folder.has_relative_path()) folder = folder.parent_path();
  const auto space = fs::space(folder, error);
  if (error || static_cast<int64_t>(space.available) >= missing_bytes) return;
  throw run_error("{}: {} are to be downloaded, but {} has {} free; free space, or set HF_HUB_CACHE to another folder",
                  repo.to_string(), format_bytes(missing_bytes), folder.string(),
                  format_bytes(static_cast<int64_t>(space.available)));
}

/// Threads that download the files of a list. The destructor stops and joins them.
class DownloadThreads {
 public:
  DownloadThreads(const HubSettings& settings, const Repo& repo, const std::string& commit, const RepoCache& cache,
                  const std::vector<RepoFile>& files)
      : settings_(settings), repo_(repo), commit_(commit), cache_(cache), files_(files) {
    const size_t count = std::min(kMaxThreads, files.size());
    num_running_ = count;
    for (size_t i = 0; i < count; ++i) threads_.emplace_back([this] { run(); });
  }
  ~DownloadThreads() {
    progress_.should_stop = true;
    for (auto& thread : threads_) thread.join();
  }
  DownloadThreads(const DownloadThreads&) = delete;
  DownloadThreads& operator=(const DownloadThreads&) = delete;

  int64_t bytes() const { return progress_.bytes; }

  /// Waits for the end, at most `timeout`. Returns false if threads are still running. Rethrows the
  /// first error.
  bool wait(std::chrono::seconds timeout) {
    std::unique_lock lock(mutex_);
    const bool has_ended = has_ended_.wait_for(lock, timeout, [this] { return num_running_ == 0; });
    if (has_ended && failure_) std::rethrow_exception(failure_);
    return has_ended;
  }

 private:
  void run() {
    try {
      HubConnection connection(settings_);
      for (size_t index = next_file_++; index < files_.size() && !progress_.should_stop; index = next_file_++) {
        download_blob(connection, repo_, commit_, cache_, files_[index], progress_);
        if (!progress_.should_stop) cache_.link_file(commit_, files_[index]);
      }
    } catch (...) {
      const std::lock_guard lock(mutex_);
      if (!failure_) failure_ = std::current_exception();
      progress_.should_stop = true;
    }
    const std::lock_guard lock(mutex_);
    if (--num_running_ == 0) has_ended_.notify_all();
  }

  const HubSettings& settings_;
  const Repo& repo_;
  const std::string& commit_;
  const RepoCache& cache_;
  const std::vector<RepoFile>& files_;
  DownloadProgress progress_;
  std::atomic<size_t> next_file_ = 0;
  std::mutex mutex_;  // guards the fields below
  std::condition_variable has_ended_;
  size_t num_running_ = 0;
  std::exception_ptr failure_;
  std::vector<std::thread> threads_;
};

}  // namespace

void download_files(const HubSettings& settings, const Repo& repo, const std::string& commit, const RepoCache& cache,
                    const std::vector<RepoFile>& files) {
  if (files.empty()) return;
  int64_t total_bytes = 0;
  for (const RepoFile& file : files) total_bytes += file.size;
  const int64_t missing_bytes = count_missing_bytes(cache, files);
  check_disk_space(cache, repo, missing_bytes);
  if (missing_bytes > 0) {
    spdlog::info("{}: downloading {} ({}) into {}", repo.to_string(),
                 pluralize(static_cast<int64_t>(files.size()), "file"), format_bytes(missing_bytes),
                 cache.folder().string());
  }
  const auto start = std::chrono::steady_clock::now();
  DownloadThreads threads(settings, repo, commit, cache, files);
  const auto get_bytes_per_second = [&] {
    const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - start;
    const int64_t downloaded = std::max<int64_t>(0, threads.bytes() - (total_bytes - missing_bytes));
    return format_bytes(static_cast<int64_t>(static_cast<double>(downloaded) / std::max(elapsed.count(), 1e-3)));
  };
  while (!threads.wait(kProgressInterval)) {
    spdlog::info("{}: {} of {}, {}/s", repo.to_string(), format_bytes(threads.bytes()), format_bytes(total_bytes),
                 get_bytes_per_second());
  }
  if (missing_bytes > 0) spdlog::info("{}: downloaded, {}/s", repo.to_string(), get_bytes_per_second());
}

}  // namespace vlmtrain::hub

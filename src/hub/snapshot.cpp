#include "vlmtrain/hub/snapshot.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include "hub/api.h"
#include "hub/blob_hash.h"
#include "hub/cache.h"
#include "hub/connection.h"
#include "hub/dataset_files.h"
#include "hub/download.h"
#include "hub/model_files.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

namespace {

/// A commit of a repository, whose files are downloaded as they are needed.
class RepoFetcher {
 public:
  /// Determines the commit. Throws as fetch_model().
  RepoFetcher(const HubSettings& settings, Repo repo, Freshness freshness)
      : settings_(settings),
        repo_(std::move(repo)),
        cache_(settings.cache, repo_),
        verifies_(freshness != Freshness::kCached) {
    if (is_commit(repo_.revision)) {
      commit_ = repo_.revision;
    } else if (const auto cached = cache_.read_ref(repo_.revision);
               cached && (freshness != Freshness::kNewest || settings.is_offline())) {
      commit_ = *cached;
    } else {
      commit_ = resolve(cached);
      cache_.write_ref(repo_.revision, commit_);
    }
  }

  const std::string& commit() const { return commit_; }
  fs::path folder() const { return cache_.get_snapshot_folder(commit_); }
  Repo repo_at_commit() const { return {.type = repo_.type, .id = repo_.id, .revision = commit_}; }

  /// Returns the files of the commit.
  const std::vector<RepoFile>& files() {
    if (!files_) files_ = cache_.read_tree(commit_);
    if (!files_) {
      files_ = list_files(connect(), repo_, commit_);
      cache_.write_tree(commit_, *files_);
    }
    return *files_;
  }

  /// Returns true if the snapshot exists, but the cache has no list of its files: an earlier
  /// version of huggingface_hub made it.
  bool has_unlisted_snapshot() const {
    std::error_code error;
    return !files_ && !cache_.read_tree(commit_) && fs::is_directory(folder(), error);
  }

  /// Lists the files of a snapshot that exists. Returns false if the network is forbidden or fails:
  /// the readers of the snapshot report what is missing.
  bool try_list_files() {
    if (settings_.is_offline()) return false;
    try {
      files();
      return true;
    } catch (const UserError& error) {
      if (error.code() != ExitCode::kFailed) throw;
      spdlog::warn("{}; using {}", error.what(), folder().string());
      return false;
    }
  }

  /// Downloads those of `files` that the snapshot lacks or that are damaged.
  void fetch(const std::vector<RepoFile>& files) {
    if (verifies_) remove_damaged_files(files);
    std::vector<RepoFile> missing;
    for (const RepoFile& file : files) {
      if (cache_.has_file(commit_, file)) {
        cache_.remove_partial_blob(file);
      } else {
        missing.push_back(file);
      }
    }
    if (missing.empty()) return;
    if (settings_.is_offline()) {
      throw data_error("{}: {} lacks {}{}, and {} forbids the network; run `vlmtrain download {}` where there is one",
                       repo_.to_string(), folder().string(), missing.front().path,
                       missing.size() == 1 ? "" : fmt::format(" and {} more", missing.size() - 1),
                       settings_.offline_variable, repo_.to_string());
    }
    download_files(settings_, repo_, commit_, cache_, missing);
  }

 private:
  /// Logs that hashing takes a while.
  void log_verification(const std::vector<RepoFile>& files) const {
    constexpr int64_t kManyBytes = int64_t{4} << 30U;  // some ten seconds; not tuned
    int64_t bytes = 0;
    for (const RepoFile& file : files) bytes += cache_.find_content(commit_, file) ? file.size : 0;
    if (bytes >= kManyBytes)
      spdlog::info("{}: checking the hashes of {} in the cache", repo_.to_string(), format_bytes(bytes));
  }

  void remove_damaged_files(const std::vector<RepoFile>& files) {
    log_verification(files);
    for (const RepoFile& file : find_damaged_files(cache_, commit_, files)) {
      const std::string path = cache_.find_content(commit_, file).value_or(folder() / file.path).string();
      if (settings_.is_offline()) {
        throw data_error("{}: is damaged, since its hash is not that of the Hub; run `vlmtrain download {}` without {}",
                         path, repo_.to_string(), settings_.offline_variable);
      }
      spdlog::warn("{}: is damaged, since its hash is not that of the Hub; downloading it again", path);
      remove_damaged_file(cache_, commit_, file);
    }
  }

  /// Returns the commit of the Hub or, if the network fails, the cached one.
  std::string resolve(const std::optional<std::string>& cached) {
    try {
      return resolve_commit(connect(), repo_);
    } catch (const UserError& error) {
      if (!cached || error.code() != ExitCode::kFailed) throw;
      spdlog::warn("{}; using the cached commit {}", error.what(), *cached);
      return *cached;
    }
  }

  HubConnection& connect() {
    if (settings_.is_offline()) {
      throw data_error(
          "{}: {}not in the cache {}, and {} forbids the network; run `vlmtrain download {}` where there is one",
          repo_.to_string(), repo_.type == RepoType::kModel ? "not a folder on this machine, " : "",
          settings_.cache.string(), settings_.offline_variable, repo_.to_string());
    }
    if (!connection_) connection_ = std::make_unique<HubConnection>(settings_);
    return *connection_;
  }

  const HubSettings& settings_;
  Repo repo_;
  RepoCache cache_;
  bool verifies_;
  std::string commit_;
  std::optional<std::vector<RepoFile>> files_;
  std::unique_ptr<HubConnection> connection_;
};

}  // namespace

Snapshot fetch_model(const HubSettings& settings, const Repo& repo, ModelFiles files, Freshness freshness) {
  RepoFetcher fetcher(settings, repo, freshness);
  Snapshot snapshot{.repo = fetcher.repo_at_commit(), .folder = fetcher.folder()};
  if (fetcher.has_unlisted_snapshot() && !fetcher.try_list_files()) return snapshot;
  check_has_config(fetcher.files(), repo);
  if (files == ModelFiles::kAdapter) check_is_adapter(fetcher.files(), repo);
  // Other callers may have a tokenizer from elsewhere (init --tokenizer).
  if (freshness != Freshness::kCached) check_has_tokenizer(fetcher.files(), repo);
  fetcher.fetch(select_config_files(fetcher.files()));
  if (files == ModelFiles::kConfig) return snapshot;
  const auto weights = select_weight_files(fetcher.files(), snapshot.folder);
  if (weights.empty()) {
    throw data_error(
        "{}: has neither model.safetensors nor adapter_model.safetensors; choose a repository with weights "
        "in this format",
        repo.to_string());
  }
  fetcher.fetch(weights);
  return snapshot;
}

std::optional<Snapshot> find_cached_model(HubSettings settings, const Repo& repo, ModelFiles files) {
  settings.offline_variable = "HF_HUB_OFFLINE";
  try {
    return fetch_model(settings, repo, files);
  } catch (const UserError&) {
    return std::nullopt;
  }
}

DatasetSnapshot fetch_dataset(const HubSettings& settings, const DatasetReference& reference, Freshness freshness) {
  RepoFetcher fetcher(settings, reference.repo, freshness);
  fetcher.fetch(select_metadata_files(fetcher.files()));
  const auto selected = select_split_files(fetcher.files(), fetcher.folder(), reference);
  fetcher.fetch(selected);
  DatasetSnapshot snapshot{.repo = fetcher.repo_at_commit(), .files = {}};
  for (const RepoFile& file : selected) snapshot.files.push_back(fetcher.folder() / file.path);
  return snapshot;
}

}  // namespace vlmtrain::hub

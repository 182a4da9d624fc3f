#include "hub/cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

namespace {

/// The format of trees/COMMIT.json.
constexpr int64_t kTreeFormatVersion = 1;

/// https://bford.info/cachedir/, with the text of huggingface_hub.
constexpr std::string_view kCacheTag =
    "Signature: 8a477f597d28d172789f06886806bc55\n"
    "# This file is a cache directory tag created by huggingface_hub.\n"
    "# For information about cache directory tags, see:\n"
    "#\thttps://bford.info/cachedir/\n";

/// Returns the name of a repository's folder: models--ORG--NAME.
std::string make_folder_name(const Repo& repo) {
  const size_t slash = repo.id.find('/');
  return (repo.type == RepoType::kDataset ? "datasets--" : "models--") + repo.id.substr(0, slash) + "--" +
         repo.id.substr(slash + 1);
}

void make_folders(const fs::path& folder) {
  std::error_code error;
  fs::create_directories(folder, error);
  if (!error) return;
  // The first folder that does not exist, and its parent, which does.
  std::error_code ignored_error;
  fs::path missing = folder;
  while (missing.has_relative_path() && !fs::exists(missing.parent_path(), ignored_error))
    missing = missing.parent_path();
  for (const fs::path& path : {missing, missing.parent_path()}) {
    if (!fs::exists(path, ignored_error) || fs::is_directory(path, ignored_error)) continue;
    throw run_error("{}: is a file in place of a folder; move it away, or set HF_HUB_CACHE to another folder",
                    path.string());
  }
  throw io::make_write_error(missing, error.value(), 0);
}

void write_cache_file(const fs::path& path, std::string_view content) {
  make_folders(path.parent_path());
  check_is_not_folder(path);
  io::write_file(path, content);
}

bool has_size(const fs::path& path, int64_t bytes) {
  std::error_code error;
  const auto size = fs::file_size(path, error);
  return !error && static_cast<int64_t>(size) == bytes;
}

}  // namespace

void check_is_not_folder(const fs::path& path) {
  std::error_code error;
  if (fs::is_directory(path, error)) throw run_error("{}: is a folder in place of a file; remove it", path.string());
}

RepoCache::RepoCache(const fs::path& cache, const Repo& repo)
    : folder_(cache / make_folder_name(repo)), locks_(cache / ".locks" / make_folder_name(repo)) {}

fs::path RepoCache::get_snapshot_folder(const std::string& commit) const {
  return folder_ / "snapshots" / commit;
}

fs::path RepoCache::get_blob_path(const RepoFile& file) const {
  return folder_ / "blobs" / file.etag();
}

fs::path RepoCache::get_partial_path(const RepoFile& file) const {
  return get_blob_path(file).string() + ".vlmtrain.incomplete";
}

std::optional<std::string> RepoCache::read_ref(const std::string& revision) const {
  const fs::path file = folder_ / "refs" / revision;
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return std::nullopt;
  std::string commit = io::read_file(file);
  while (!commit.empty() && (commit.back() == '\n' || commit.back() == ' ')) commit.pop_back();
  if (!is_commit(commit)) return std::nullopt;
  return commit;
}

void RepoCache::write_ref(const std::string& revision, const std::string& commit) const {
  if (revision == commit || read_ref(revision) == commit) return;
  write_cache_file(folder_ / "refs" / revision, commit);
}

std::optional<std::vector<RepoFile>> RepoCache::read_tree(const std::string& commit) const {
  const fs::path path = folder_ / "trees" / (commit + ".json");
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return std::nullopt;
  try {
    const auto tree = io::read_json(path);
    const std::string source = path.string();
    if (io::get<int64_t>(tree, "format_version", source) != kTreeFormatVersion) return std::nullopt;
    std::vector<RepoFile> files;
    for (const auto& [name, info] : tree.at("files").items()) {
      RepoFile file{.path = name,
                    .size = io::get<int64_t>(info, "size", source),
                    .blob_id = io::get<std::string>(info, "blob_id", source),
                    .lfs_sha256 = io::get_or<std::string>(info, "lfs_sha256", "", source),
                    .xet_hash = io::get_or<std::string>(info, "xet_hash", "", source)};
      if (!file.lfs_sha256.empty()) file.size = io::get_or<int64_t>(info, "lfs_size", file.size, source);
      check_repo_file(file, source);
      files.push_back(std::move(file));
    }
    return files;
  } catch (const std::exception&) {
    return std::nullopt;  // written by another version; the server has the list
  }
}

void RepoCache::write_tree(const std::string& commit, const std::vector<RepoFile>& files) const {
  std::vector<const RepoFile*> sorted;
  sorted.reserve(files.size());
  for (const RepoFile& file : files) sorted.push_back(&file);
  std::ranges::sort(sorted, {}, &RepoFile::path);
  nlohmann::ordered_json entries = nlohmann::ordered_json::object();
  for (const RepoFile* file : sorted) {
    nlohmann::ordered_json entry{{"size", file->size}, {"blob_id", file->blob_id}};
    if (!file->lfs_sha256.empty()) {
      entry["lfs_sha256"] = file->lfs_sha256;
      entry["lfs_size"] = file->size;
    }
    if (!file->xet_hash.empty()) entry["xet_hash"] = file->xet_hash;
    entries[file->path] = std::move(entry);
  }
  const nlohmann::ordered_json tree{{"format_version", kTreeFormatVersion}, {"files", std::move(entries)}};
  write_cache_file(folder_ / "trees" / (commit + ".json"), tree.dump(1, ' ', /*ensure_ascii=*/true));
}

bool RepoCache::has_file(const std::string& commit, const RepoFile& file) const {
  return has_size(get_snapshot_folder(commit) / file.path, file.size);
}

std::optional<fs::path> RepoCache::find_content(const std::string& commit, const RepoFile& file) const {
  for (const fs::path& path : {get_snapshot_folder(commit) / file.path, get_blob_path(file)}) {
    if (has_size(path, file.size)) return path;
  }
  return std::nullopt;
}

void RepoCache::remove_partial_blob(const RepoFile& file) const {
  std::error_code ignored_error;  // the cache may be read-only
  fs::remove(get_partial_path(file), ignored_error);
}

void RepoCache::link_file(const std::string& commit, const RepoFile& file) const {
  if (has_file(commit, file)) return;
  const fs::path path = get_snapshot_folder(commit) / file.path;
  make_folders(path.parent_path());
  check_is_not_folder(path);
  io::write_symlink(path, fs::path(get_blob_path(file)).lexically_relative(path.parent_path()));
}

BlobLock::BlobLock(const RepoCache& cache, const RepoFile& file) {
  const fs::path root = cache.folder_.parent_path();
  make_folders(cache.folder_ / "blobs");
  make_folders(cache.locks_);
  std::error_code error;
  if (!fs::exists(root / "CACHEDIR.TAG", error)) io::write_file(root / "CACHEDIR.TAG", kCacheTag);
  const fs::path path = cache.locks_ / (file.etag() + ".lock");
  constexpr mode_t kMode = 0666;  // several users may share a cache; the umask applies
  descriptor_ = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, kMode);
  if (descriptor_ < 0) throw io::make_write_error(path, errno, 0);
  // Without locks on this file system, two writers download the same content; hashes are checked.
  while (flock(descriptor_, LOCK_EX) != 0 && errno == EINTR) {
  }
}

BlobLock::~BlobLock() {
  close(descriptor_);
}

}  // namespace vlmtrain::hub

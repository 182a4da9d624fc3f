#include "hub/blob_download.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include <array>
#include <cerrno>
#include <optional>
#include <system_error>
#include <vector>

#include "hub/blob_hash.h"
#include "hub/hub_error.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"

namespace vlmtrain::hub {

namespace fs = std::filesystem;

namespace {

/// Bytes of an attempt that count as progress: as long as there is some, attempts are not limited.
/// Not tuned.
constexpr int64_t kMinProgressBytes = int64_t{1} << 20U;

constexpr int kOk = 200, kPartialContent = 206, kRangeNotSatisfiable = 416;

/// Returns the first position of a Content-Range header, "bytes 100-199/200" (RFC 9110).
std::optional<int64_t> parse_range_start(const std::string& header) {
  return parse_int_after_prefix("bytes ", header.substr(0, header.find('-')));
}

/// The body of a response while it is appended to a partial content.
class BodyWriter {
 public:
  BodyWriter(const RepoFile& file, PartialBlob& blob, DownloadProgress& progress)
      : file_(file), blob_(blob), progress_(progress), requested_start_(blob.size()) {}

  /// See BodySink.
  bool write(const HttpResponse& head, std::string_view bytes) {
    if (progress_.should_stop || (head.status != kOk && head.status != kPartialContent)) return false;
    if (!is_checked_ && !check_start(head)) return false;
    is_checked_ = true;
    if (blob_.size() + static_cast<int64_t>(bytes.size()) > file_.size) {
      sends_too_much_ = true;
      return false;
    }
    blob_.append(bytes);
    progress_.bytes += static_cast<int64_t>(bytes.size());
    return true;
  }

  bool sends_too_much() const { return sends_too_much_; }

 private:
  /// Compares the start of the body with the end of the partial content.
  bool check_start(const HttpResponse& head) {
    if (head.status == kOk) {
      if (requested_start_ > 0) clear();  // the server ignores ranges
      return true;
    }
    return parse_range_start(head.header("content-range")) == requested_start_;
  }

  void clear() {
    progress_.bytes -= blob_.size();
    blob_.clear();
  }

  const RepoFile& file_;
  PartialBlob& blob_;
  DownloadProgress& progress_;
  int64_t requested_start_;
  bool is_checked_ = false;
  bool sends_too_much_ = false;
};

}  // namespace

PartialBlob::PartialBlob(const RepoCache& cache, const RepoFile& file)
    : file_(file),
      destination_path_(cache.get_blob_path(file)),
      path_(cache.get_partial_path(file)),
      hash_(make_blob_hash(file)) {
  for (const fs::path& path : {destination_path_, path_}) check_is_not_folder(path);
  constexpr mode_t kMode = 0666;  // several users may share a cache; the umask applies
  descriptor_ = open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, kMode);
  if (descriptor_ < 0) throw io::make_write_error(path_, errno, 0);
  std::vector<char> buffer(size_t{1} << 20U);
  for (;;) {
    const ssize_t count = read(descriptor_, buffer.data(), buffer.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) break;
    hash_->add({buffer.data(), static_cast<size_t>(count)});
    size_ += count;
  }
  if (size_ > file_.size) clear();
}

PartialBlob::~PartialBlob() {
  close(descriptor_);
}

void PartialBlob::append(std::string_view bytes) {
  hash_->add(bytes);
  while (!bytes.empty()) {
    const ssize_t count = ::write(descriptor_, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw io::make_write_error(destination_path_, errno, file_.size);
    bytes.remove_prefix(static_cast<size_t>(count));
    size_ += count;
  }
}

void PartialBlob::clear() {
  if (ftruncate(descriptor_, 0) != 0 || lseek(descriptor_, 0, SEEK_SET) != 0)
    throw io::make_write_error(path_, errno, 0);
  size_ = 0;
  hash_ = make_blob_hash(file_);
}

bool PartialBlob::commit() {
  if (hash_->to_hex() != file_.etag()) {
    clear();
    return false;
  }
  if (fsync(descriptor_) != 0 || rename(path_.c_str(), destination_path_.c_str()) != 0)
    throw io::make_write_error(destination_path_, errno, file_.size);
  return true;
}

void download_blob(HubConnection& connection, const Repo& repo, const std::string& commit, const RepoCache& cache,
                   const RepoFile& file, DownloadProgress& progress) {
  const std::string subject = fmt::format("{}: {}", repo.id, make_excerpt(file.path));
  const BlobLock lock(cache, file);
  if (cache.find_content(commit, file)) {  // another process downloaded it meanwhile
    cache.remove_partial_blob(file);
    progress.bytes += file.size;
    return;
  }
  PartialBlob blob(cache, file);
  progress.bytes += blob.size();
  const std::string url = make_file_url(connection.settings(), repo, commit, file.path);
  int attempt = 1;
  bool had_other_content = false;
  for (;;) {
    const int64_t start = blob.size();
    HubResponse response;
    BodyWriter writer(file, blob, progress);
    if (start < file.size || file.size == 0) {
      std::vector<std::string> headers;
      if (start > 0) headers.push_back(fmt::format("Range: bytes={}-", start));
      response = connection.get(
          url, headers, [&](const HttpResponse& head, std::string_view bytes) { return writer.write(head, bytes); });
    }
    if (progress.should_stop) return;
    // The file is shorter than its listed size.
    const bool has_ended = response.status == kRangeNotSatisfiable;
    const bool is_whole = blob.size() == file.size && !writer.sends_too_much() &&
                          (response.status == 0 || response.status == kOk || response.status == kPartialContent);
    if (is_whole && blob.commit()) return;
    if (is_whole || has_ended || writer.sends_too_much()) {
      progress.bytes -= is_whole ? file.size : blob.size();
      if (!is_whole) blob.clear();
      if (had_other_content) {
        throw data_error(
            "{}: the server sends other content than the {} bytes with hash {} that it lists; try again "
            "later, or check HF_ENDPOINT and proxies",
            subject, file.size, file.etag());
      }
      had_other_content = true;  // perhaps the partial content was damaged; again from the start
      continue;
    }
    if (response.error == TransferError::kNone && (response.status == kOk || response.status == kPartialContent)) {
      response.error = TransferError::kInterrupted;
      response.problem = "the response ended early";
    } else if (response.error == TransferError::kStopped) {
      response.error = TransferError::kNone;  // the status is the reason
    }
    if (blob.size() - start >= kMinProgressBytes) attempt = 1;
    if (attempt == kMaxAttempts || !is_temporary_failure(response))
      throw make_hub_error(connection.settings(), repo, file.path, response);
    spdlog::debug("{}: attempt {}: status {}, {}", subject, attempt, response.status, response.problem);
    wait_before_retry(connection.settings(), response, attempt++);
  }
}

}  // namespace vlmtrain::hub

#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/hash.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// A table of notice kinds. The id of a kind is its index, in the order in which kinds were added.
class NoticeKindTable {
 public:
  NoticeKindTable() = default;
  /// `names` are the kinds by id.
  explicit NoticeKindTable(std::vector<std::string> names);

  int64_t size() const { return std::ssize(names_); }
  const std::string& name(int64_t id) const { return names_.at(static_cast<size_t>(id)); }
  const std::vector<std::string>& names() const { return names_; }
  /// Returns the id of a kind; adds it if it is new.
  int64_t find_or_add(const std::string& name);
  /// Returns the id of a kind; nothing if the table does not have it.
  std::optional<int64_t> find(const std::string& name) const;

 private:
  std::vector<std::string> names_;
  std::map<std::string, int64_t> ids_by_name_;
};

/// A notice of a cached sample.
struct CachedNotice {
  int64_t kind = 0;       ///< id in the cache's NoticeKindTable
  std::string example{};  ///< set only in the first sample with this kind

  bool operator==(const CachedNotice&) const = default;
};

/// The cached properties of a sample, and the state of the record and files that they depend on.
struct CachedSample {
  uint64_t fingerprint = 0;          ///< compute_record_fingerprint() of the record
  uint64_t file_state_hash = 0;      ///< compute_file_state_hash() of `files`
  std::vector<std::string> files{};  ///< list_record_files() of the record
  SampleShape shape{};
  int64_t decode_bytes = 0;  ///< Sample::decode_bytes
  std::optional<ShrinkInfo> shrink_info{};
  std::string id{};
  std::string task{};
  std::vector<CachedNotice> notices{};  ///< notices of the record, then of the processing
  int64_t num_record_notices = 0;       ///< number of `notices` that come from the record
};

/// Returns a hash of a record's conversation and media names, or media bytes if they are embedded.
/// Independent of id, task and notices.
uint64_t compute_record_fingerprint(const io::Record& record);
/// Returns the paths of a record's media files and folders. Embedded media are omitted.
std::vector<std::string> list_record_files(const io::Record& record);
/// Returns a hash of the names, sizes and times of files, and of the files in folders. Opens no
/// file.
uint64_t compute_file_state_hash(const std::vector<std::string>& files);

/// Returns an absolute path without ".", ".." and repeated slashes; empty if `path` is empty. Does
/// not resolve links.
std::string normalize_path(const std::string& path);

/// Returns the sample as a line of JSON without line break; "null" without a sample.
std::string to_cache_line(const std::optional<CachedSample>& sample);
/// Parses the result of to_cache_line(). Returns nothing for other text, or if a notice has a kind
/// id of at least `kinds`.
std::optional<CachedSample> parse_cache_line(std::string_view line, int64_t kinds = 0);

class SampleIndexCacheWriter;

/// A reader of cache files. Reads one line at a time, since a data set may have millions of
/// samples. Verifies the hash of the whole file first, so that the parser never reads damaged
/// content. A missing or damaged file, or one with another key, has no lines.
class SampleIndexCacheReader {
 public:
  SampleIndexCacheReader() = default;  ///< a reader without lines
  /// `key` identifies the settings that the samples depend on.
  SampleIndexCacheReader(const std::filesystem::path& file, const std::string& key);

  uint64_t version_hash() const {
    return version_hash_;
  }  ///< io::Records::version_hash() of the data set; 0 without lines
  int64_t num_samples() const { return num_samples_; }  ///< number of lines
  const NoticeKindTable& kinds() const { return kinds_; }

  /// Returns the next line, or "" after the last one.
  std::string next();

  /// Copies the lines read so far, except the last `num_skipped`, to `writer`.
  void copy_lines(SampleIndexCacheWriter& writer, int64_t num_skipped);

 private:
  /// Opens the file. Sets version_hash_, num_samples_ and body_offset_ if the header is valid and
  /// has this key.
  void read_header(const std::filesystem::path& file, const std::string& key);
  /// Returns whether the hash of the body is correct and its kinds can be read.
  bool verify_hash();
  /// Reads the kinds from the line at `offset`. Returns false if it is invalid.
  bool read_notice_kinds(std::streamoff offset);

  std::ifstream stream_;
  std::streamoff body_offset_ = 0;
  uint64_t version_hash_ = 0;
  int64_t num_samples_ = 0;
  int64_t num_read_lines_ = 0;
  NoticeKindTable kinds_;
};

/// A writer of cache files: one line for each sample of a data set, in order. The file appears
/// atomically with commit(). If it cannot be written, that is logged and the writer does nothing.
class SampleIndexCacheWriter {
 public:
  SampleIndexCacheWriter(const std::filesystem::path& file, const std::string& key, uint64_t version_hash,
                         int64_t samples);

  /// Adds the line of the next sample, without line break.
  void add(std::string_view line);
  /// Completes the file. `kinds` is the table with the kind ids of the lines.
  void commit(const NoticeKindTable& kinds = {});

 private:
  /// Calls `action`. If it throws, logs the error and gives up the file.
  template <class Action>
  void try_write(const Action& action);
  void write_block();

  std::filesystem::path path_;
  std::optional<io::AtomicFile> file_;  // empty after an error
  ContentHash body_hash_;
  std::string pending_lines_;  // lines that are not written yet
};

}  // namespace vlmtrain::data

#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/content_hash.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {

/// Kinds of notices by number, in the order in which a cache met them.
class NoticeKindTable {
 public:
  NoticeKindTable() = default;
  explicit NoticeKindTable(std::vector<std::string> names);

  int64_t size() const { return std::ssize(names_); }
  const std::string& name(int64_t id) const { return names_.at(static_cast<size_t>(id)); }
  const std::vector<std::string>& names() const { return names_; }
  /// Of a kind that is new, the next.
  int64_t find_or_add(const std::string& name);
  std::optional<int64_t> find(const std::string& name) const;

 private:
  std::vector<std::string> names_;
  std::map<std::string, int64_t> ids_;
};

/// A notice of a cached sample. Only the first sample of a kind has its example.
struct CachedNotice {
  int64_t kind = 0;  ///< in the cache's NoticeKindTable
  std::string example{};

  bool operator==(const CachedNotice&) const = default;
};

/// A sample's shape and names, and what they were found on.
struct CachedSample {
  uint64_t fingerprint = 0;          ///< of the record, its files' contents apart
  uint64_t file_state = 0;           ///< of its files
  std::vector<std::string> files{};  ///< that it names
  SampleShape shape{};
  int64_t decode_bytes = 0;  ///< Sample::decode_bytes
  std::optional<ShrinkInfo> shrunk{};
  std::string id{};
  std::string task{};
  std::vector<CachedNotice> notices{};
  int64_t num_record_notices = 0;  ///< the first so many of them; the others are of its sample
};

/// Tells a record from others by what it says and by the names of its files, whatever its id, task and notices are.
uint64_t compute_fingerprint(const io::Record& record);
/// The files and folders of a record's media, those apart that the data set itself carries.
std::vector<std::string> list_files(const io::Record& record);
/// Tells files from what they were, and the files in folders, by their names, sizes and times. Opens no file.
uint64_t compute_file_state(const std::vector<std::string>& files);

/// One line of JSON, without its end; of no shape it says so.
std::string to_cache_line(const std::optional<CachedSample>& shape);
/// Nothing for any other text, and where it has notices of other kinds than the first `kinds`.
std::optional<CachedSample> parse_cache_line(std::string_view line, int64_t kinds = 0);

class SampleIndexCacheWriter;

/// One path in the spelling that all of its spellings have.
std::string normalize_path(const std::string& path);

/// Reads what an SampleIndexCacheWriter wrote with the same key, one line at a time: a data set may have millions. A
/// file that is missing, damaged or of another key has no lines. The whole file is looked over first, so that a damaged
/// one cannot mislead a parser.
class SampleIndexCacheReader {
 public:
  SampleIndexCacheReader() = default;  ///< no lines
  SampleIndexCacheReader(const std::filesystem::path& file, const std::string& key);

  uint64_t stamp() const { return stamp_; }     ///< io::Records::stamp() of the data set that it was made for
  int64_t samples() const { return samples_; }  ///< lines in all
  const NoticeKindTable& kinds() const { return kinds_; }

  /// The next line; "" behind the last.
  std::string next();

  /// Writes the lines again that were read so far, the last `num_skipped` of them apart.
  void copy_lines(SampleIndexCacheWriter& writer, int64_t num_skipped);

 private:
  void read_header(const std::filesystem::path& file, const std::string& key);
  bool verify_hash();
  bool read_kinds(std::streamoff offset);

  std::ifstream stream_;
  std::streamoff body_offset_ = 0;
  uint64_t stamp_ = 0;
  int64_t samples_ = 0;
  int64_t num_read_ = 0;
  NoticeKindTable kinds_;
};

/// Writes one line for each sample of a data set, in their order. The file appears with commit(). One that cannot be
/// written is a line in the log, no error.
class SampleIndexCacheWriter {
 public:
  SampleIndexCacheWriter(const std::filesystem::path& file, const std::string& key, uint64_t stamp, int64_t samples);

  void add(std::string_view line);
  /// `kinds`: those that the lines name by their numbers.
  void commit(const NoticeKindTable& kinds = {});

 private:
  template <class Action>
  void try_write(const Action& action);
  void write_block();

  std::optional<io::AtomicFile> file_;  // none once it failed
  ContentHash hash_;
  std::string block_;  // that is not written yet
};

}  // namespace vlmtrain::data

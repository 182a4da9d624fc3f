#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// The records of a data set, read on demand by index. Thread-safe.
class Records {
 public:
  virtual ~Records() = default;

  virtual int64_t size() const = 0;
  /// Returns a record. A record that cannot be used has a `problem`. Throws run_error if a file of
  /// the data set has changed or can no longer be read. REQUIRES: 0 <= index < size().
  virtual Record at(int64_t index) const = 0;
  /// Same as at(), but MediaRef::bytes may be get_omitted_bytes_marker() if reading the bytes takes
  /// time.
  virtual Record at_without_media_bytes(int64_t index) const { return at(index); }
  /// Returns the first index of each block of records that are cheap to read together, such as a
  /// row group. Indices ascend from 0. Empty if every order of reading costs the same.
  virtual std::vector<int64_t> block_starts() const { return {}; }
  /// Returns a hash that changes if a record may have changed, for caches. It covers the settings
  /// of the reader and the paths, sizes and times of the data set's files, but not of the media
  /// that records name. 0 if unknown.
  virtual uint64_t version_hash() const { return 0; }
};

/// Records in memory.
class InMemoryRecords final : public Records {
 public:
  InMemoryRecords() = default;
  explicit InMemoryRecords(std::vector<Record> records) : records_(std::move(records)) {}

  int64_t size() const override { return std::ssize(records_); }
  Record at(int64_t index) const override { return records_.at(static_cast<size_t>(index)); }

  /// Returns a reference to a stored record. Throws std::out_of_range for an invalid index.
  Record& operator[](int64_t index) { return records_.at(static_cast<size_t>(index)); }
  const Record& operator[](int64_t index) const { return records_.at(static_cast<size_t>(index)); }

 private:
  std::vector<Record> records_;
};

/// A selection of the records of another data set, in any order.
class SubsetRecords final : public Records {
 public:
  /// Selects the records of `base` at `indices`, in that order. REQUIRES: the indices are valid in
  /// `base`.
  SubsetRecords(std::shared_ptr<const Records> base, std::vector<int64_t> indices)
      : base_records_(std::move(base)), record_indices_(std::move(indices)) {}

  int64_t size() const override { return std::ssize(record_indices_); }
  Record at(int64_t index) const override { return base_records_->at(record_indices_.at(static_cast<size_t>(index))); }
  Record at_without_media_bytes(int64_t index) const override {
    return base_records_->at_without_media_bytes(record_indices_.at(static_cast<size_t>(index)));
  }
  /// Returns the positions in this selection where blocks of `base` begin if the indices ascend,
  /// else an empty list.
  std::vector<int64_t> block_starts() const override;
  uint64_t version_hash() const override;

 private:
  std::shared_ptr<const Records> base_records_;
  std::vector<int64_t> record_indices_;
};

/// The concatenation of the files of a data set. Record::location begins with the name of the file.
class ConcatRecords final : public Records {
 public:
  /// The records of one file.
  struct NamedRecords {
    std::string name;                        ///< printable file name, for Record::location
    std::shared_ptr<const Records> records;  ///< not null
  };
  /// Concatenates `parts` in order.
  explicit ConcatRecords(std::vector<NamedRecords> parts);

  int64_t size() const override { return part_starts_.back(); }
  Record at(int64_t index) const override;
  Record at_without_media_bytes(int64_t index) const override;
  std::vector<int64_t> block_starts() const override;
  uint64_t version_hash() const override;

 private:
  /// Returns the index of the part that contains a record.
  size_t find_part_index(int64_t index) const;
  Record add_part_name(Record record, size_t part_index) const;

  std::vector<NamedRecords> parts_;
  std::vector<int64_t> part_starts_;  // index of the first record of each part, then size()
};

/// Opens a data set without loading it. Records are read on demand, so the files must stay in place
/// and unchanged during the lifetime of the result.
///
/// `path` is a file, a pattern (glob(7), such as data/*.parquet), or a folder of Parquet files,
/// tars or JSON Lines files. Several files are one data set, in natural order of their paths. The
/// format is detected from the content:
///
/// - a JSON array of records, or JSON Lines (one record per line; blank lines are skipped);
/// - Parquet with one record per row, and images as bytes or paths, read by a plug-in (row_file.h);
/// - a WebDataset tar: the members a.json, a.txt, a.jpg, a.0.png, a.mp4 … are the record "a"
///   (dataset/record_files.h).
///
/// Formats of records:
///   LLaVA      {"image": "a.jpg" or [...],
///               "conversations": [{"from": "human", "value": "<image>\n..."}, ...]}
///   ShareGPT   {"images": [...], "conversations": [{"from": "user", ...}, ...]}
///   messages   {"images": [...],
///               "messages": [{"role": "user", "content": "..." or [blocks]}, ...]}
///   Cauldron   {"images": [...], "texts": [{"user": "...", "assistant": "..."}, ...]}
///   questions  {"image": "a.jpg", "question": "...", "answer": "..."}
///   captions   {"image": "a.jpg", "caption": "..."}: the user's turn consists of the image
///   Alpaca     {"instruction": "...", "input": "...", "output": "...",
///               "history": [["...", "..."], ...]}
/// RecordSettings::columns maps other names to these.
///
/// - Media: records may have "video" or "videos" in place of images or next to them. An image is a
///   path, or {"bytes", "path"} as in Hugging Face datasets; "file://" before a path is removed. A
///   video may be a list of images. Turns may have their own media under the same keys.
/// - Content blocks of messages: {"type": "text", "text"}; {"type": "image"} for the next of
///   "images", or with its own "image", "path" or "url"; {"type": "image_url", "image_url": {"url"}
///   or string}; and the same with "video".
/// - Placeholders: if no turn has a placeholder for an image, placeholders are added at the start
///   of the first user turn, as in LLaVA's code: first images, then videos. If a record has only
///   videos, its <image> placeholders stand for the videos, as in LLaVA's data.
/// - Texts: a "system" text becomes the first turn, as in LLaMA-Factory. Numbers and booleans
///   become strings.
/// - Keys that are not read: a key that would change what is learned is a problem of the record.
///   Other keys are ignored, with a notice unless they are known to be harmless
///   (record/keys/key_rules.h).
///
/// A record that cannot be used has a `problem`; other records can still be read. Media files are
/// not opened. Throws data_error if a file cannot be read, or, with line and column, if a JSON
/// array is invalid.
std::shared_ptr<const Records> open_records(const std::filesystem::path& path, const RecordSettings& settings);
/// Opens `files`, at least one, as one data set in their order. `name` stands for them in messages.
std::shared_ptr<const Records> open_records(const std::vector<std::filesystem::path>& files, const std::string& name,
                                            const RecordSettings& settings);

/// Returns the files of a data set's path in natural order: the file itself, the matches of a
/// pattern (glob(7)), or the Parquet files, tars or JSON Lines files of a folder. Throws data_error
/// if nothing matches, or if a folder has files of several formats or splits. A path without
/// pattern characters is returned unchanged, also if it does not exist.
std::vector<std::filesystem::path> find_data_files(const std::filesystem::path& path);

/// Returns all records of a data set that fits in memory, with media paths relative to
/// `image_root`. If `image_root` is empty, relative paths are unchanged. Throws as open_records().
std::vector<Record> read_dataset(const std::filesystem::path& path, const std::filesystem::path& image_root = {});

/// A row group of a Parquet file, as its footer describes it.
struct RowGroupInfo {
  std::filesystem::path file;
  size_t group = 0;   ///< index in the file
  int64_t rows = 0;   ///< number of rows
  int64_t bytes = 0;  ///< uncompressed size
};

/// Host memory of the row groups of all open data sets, which share one cache.
struct RowGroupMemoryStats {
  std::optional<RowGroupInfo> largest_row_group;  ///< empty if no Parquet file is open
  int64_t max_cached_bytes = 0;                   ///< upper bound of `cached_bytes`
  int64_t cached_bytes = 0;                       ///< size of the currently cached row groups

  /// Returns the bytes that further reading may allocate: the remainder of `max_cached_bytes`, and
  /// the largest row group once more while it is read (docs/reference/data-formats.md).
  int64_t compute_max_additional_bytes() const;
};

/// Returns the memory of the row groups according to the footers of the files, without reading row
/// groups. Thread-safe.
RowGroupMemoryStats get_row_group_memory_stats();

}  // namespace vlmtrain::io

#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "vlmtrain/io/record.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Opens a data set without loading it. Records are read on demand.
///
/// `path` is a file, a pattern (glob(7), such as data/*.parquet), or a folder of Parquet files,
/// tars or JSON Lines files. Several files are one data set, in natural order of their paths. The
/// format is detected from the content:
///
/// - a JSON array of records, or JSON Lines (one record per line; blank lines are skipped);
/// - Parquet with one record per row, and images as bytes or paths, read by a plug-in (row_file.h);
/// - a WebDataset tar: the members a.json, a.txt, a.jpg, a.0.png, a.mp4 … are the record "a"
///   (dataset/tar_records.h).
///
/// Formats of records:
///   LLaVA      {"image": "a.jpg" or [...], "conversations": [{"from": "human", "value": "<image>\n..."}, ...]}
///   ShareGPT   {"images": [...], "conversations": [{"from": "user", ...}, ...]}
///   messages   {"images": [...], "messages": [{"role": "user", "content": "..." or [blocks]}, ...]}
///   Cauldron   {"images": [...], "texts": [{"user": "...", "assistant": "..."}, ...]}
///   questions  {"image": "a.jpg", "question": "...", "answer": "..."}
///   captions   {"image": "a.jpg", "caption": "..."}: the user's turn is the image
///   Alpaca     {"instruction": "...", "input": "...", "output": "...", "history": [["...", "..."], ...]}
/// RecordSettings::columns maps other names to these.
///
/// - Media: "video" or "videos" replace or accompany the images. An image is a path, or {"bytes",
///   "path"} as in Hugging Face datasets; "file://" before a path is removed. A video may be a list
///   of images. Turns may have media of their own under the same keys.
/// - Blocks of messages: {"type": "text", "text"}; {"type": "image"} for the next of "images", or
///   with its own "image", "path" or "url"; {"type": "image_url", "image_url": {"url"} or string};
///   and the same with "video".
/// - Placeholders: if no turn has a placeholder for an image, placeholders are added at the start
///   of the first user
/// turn,
///   as in LLaVA's code, those of videos after those of images. If a record has only videos, <image> placeholders stand
///   for them, as in LLaVA's data.
/// - Texts: a "system" text comes first, as in LLaMA-Factory. Numbers and booleans become strings.
/// - Unknown keys with a value are harmless, a notice of the record, or its problem if they alter
///   learning (record/key_rules.h).
///
/// A record that cannot be used has a `problem` and does not stop the reading. Media files are not
/// opened. Throws data_error that names file, line and column if a file cannot be read or a JSON
/// array is broken.
std::shared_ptr<const Records> open_records(const std::filesystem::path& path, const RecordSettings& settings);

/// Returns all records of a small data set. Relative media paths are unchanged if `image_root` is
/// empty.
std::vector<Record> read_dataset(const std::filesystem::path& path, const std::filesystem::path& image_root = {});

/// A row group of a Parquet file, as its footer describes it.
struct LargeRowGroup {
  std::filesystem::path file;
  size_t group = 0;
  int64_t rows = 0;
  int64_t bytes = 0;  ///< in memory
};

/// Memory of the row groups of all open data sets.
struct RowGroupMemory {
  std::optional<LargeRowGroup> largest;  ///< empty if no Parquet file is open
  int64_t max_cached_bytes = 0;          ///< upper bound of the cached row groups
  int64_t cached_bytes = 0;              ///< size of the row groups that are cached now

  /// Returns the bytes that further reading may allocate: the row groups that are not cached yet,
  /// and the largest one once more while it is read (docs/data.md).
  int64_t compute_additional_bytes() const;
};

/// Returns the memory according to the footers, without reading row groups. Thread-safe.
RowGroupMemory get_row_group_memory();

}  // namespace vlmtrain::io

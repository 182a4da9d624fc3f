#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "io/dataset/row_group_cache.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {

/// Parses the text of a record. Returns nothing if it is not JSON or nested too deeply. Accepts
/// three literals that Python's json module writes although they are not JSON: NaN becomes null,
/// and Infinity and -Infinity become strings.
std::optional<RecordJson> parse_record_json(std::string_view text);

/// Returns `text` with the literals NaN, Infinity and -Infinity replaced by numbers of the same
/// length, so that find_json_error() reports other errors at their original position.
std::string zero_non_finite_literals(std::string_view text);

/// Describes a JSON object that contains records and is not a record itself: a list of records
/// under a key, one record under each key, or another trainer's registry of data sets. Returns the
/// end of a message ("is one JSON object, …") with the key and a suggestion. Returns "" if the
/// object may be a record.
std::string describe_wrapped_records(std::string_view text);

/// Opens a JSON array or a JSON Lines file. Keeps 12 bytes per record in memory; each record is
/// read and parsed on demand. The offsets of files of at least 256 MiB are cached on disk for later
/// runs (record_offsets.h). A record that is not JSON has a problem. Logs a warning for columns of
/// `settings` that no record has. Throws as find_record_offsets().
std::shared_ptr<const Records> open_json_records(const std::filesystem::path& path, const RecordSettings& settings);

/// Opens a Parquet file with the plug-in libvlmtrain_parquet.so, which is loaded on the first call.
/// Throws data_error if the file cannot be read, or if the plug-in is missing or of another
/// version.
std::unique_ptr<const RowFile> open_row_file(const std::filesystem::path& file);

/// Returns the rows of a table as records. Row groups are read on demand and cached in `cache`
/// under `data_set_id`, an id from RowGroupCache::make_unique_id() that all files of a data set
/// share. The blocks of the records are the row groups. If a row group cannot be read, its records
/// have a problem. Throws data_error that lists the columns if they do not form records.
std::shared_ptr<const Records> open_table_records(DataFile file, std::unique_ptr<const RowFile> row_file,
                                                  const RecordSettings& settings, std::shared_ptr<RowGroupCache> cache,
                                                  uint64_t data_set_id);

/// A cell of a row that cannot be read.
struct UnsupportedCell {
  std::string column;   ///< name of the column
  std::string type;     ///< name of the Arrow type
  std::string problem;  ///< end of a message after the column's name ("has the type …"), with a suggestion
};

/// Replaces special cells (row_file.h) at any depth of a row. SpecialCellKind::kJsonText becomes
/// the parsed value. Invalid JSON and SpecialCellKind::kUnsupportedType become null and are
/// returned, at most one per column. SpecialCellKind::kOmittedBytes is unchanged.
std::vector<UnsupportedCell> replace_unsupported_cells(RecordJson& row);

/// Returns true if a row that was read without bytes must be read again with them: a list under
/// "video" or `video_column` is one video if all its entries are images, and only their bytes show
/// this. `video_column` may be "".
bool needs_media_bytes(const RecordJson& row, const std::string& video_column);

/// Opens a WebDataset tar. Files that share the name up to its first dot, in any case of the
/// extension, are one record. Files of the record "a":
///   a.json              its fields, as in JSON Lines
///   a.txt               its "caption", unless a.json has one
///   a.question.txt …    its fields, if data.columns names the extension ("question.txt")
///   a.jpg, a.0.jpg …    its images (formats that decode_image() reads; others make bad samples), in the
///                       order of a.json's list, else in natural order
///   a.mask.png …        its "masks" (tar_archive.h), unless a.json lists them as images
///   a.mp4 …             its videos (mp4, mkv, webm, avi, mov)
///   a.nii.gz            its volumes
///
/// Files that are not used become notices of the record; audio becomes its problem. The headers of
/// the tar are read once, contents on demand. A record has a problem if one of its files is
/// truncated, occurs twice or cannot be read. Throws as for_each_tar_member().
std::shared_ptr<const Records> open_tar_records(const std::filesystem::path& path, const RecordSettings& settings);

}  // namespace vlmtrain::io

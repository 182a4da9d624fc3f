#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "vlmtrain/io/json.h"
#include "vlmtrain/io/records.h"

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

}  // namespace vlmtrain::io

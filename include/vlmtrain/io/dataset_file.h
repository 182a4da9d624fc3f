#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// What a data set may call otherwise.
inline constexpr std::array<std::string_view, 17> kRenamableColumns{
    "id",    "task",   "system", "messages", "question", "answer",  "caption",  "image",     "images",
    "video", "videos", "mask",   "masks",    "volume",   "volumes", "modality", "subject_id"};

/// How the records of a data set are read.
struct RecordSettings {
  /// Relative paths of images and videos start from here; nothing: from the folder of the file that names them.
  std::optional<std::filesystem::path> image_root = std::nullopt;
  /// Names of kRenamableColumns, and what the data set calls them.
  std::map<std::string, std::string> columns{};
  /// Keys of records, turns and content blocks that are left out before a record is read (data.ignore_keys).
  std::vector<std::string> ignore_keys{};
  /// A record that names a file outside of `image_root`, by an absolute path, by "..", or through a link, has a
  /// problem.
  bool restrict_to_image_root = false;
};

/// Opens a data set, without loading it: its records are read one by one (records.h).
///
/// `path` is a file; or a pattern (glob(7), such as data/*.parquet); or a folder with Parquet files, or with tars, or
/// with JSON Lines. Several files are one data set, in natural order of their paths. What a file is, its content tells:
///
/// - a JSON array of records, or JSON Lines (one record a line, blank lines are skipped);
/// - Parquet, a record a row, with the bytes of pictures in it or their paths, by a plug-in (row_file.h);
/// - a WebDataset tar: the members a.json, a.txt, a.jpg, a.0.png, a.mp4 ... are the record "a" (src/io/tar_records.h).
///
/// A record is, in the words of its format,
///   LLaVA      {"image": "a.jpg" or [...], "conversations": [{"from": "human", "value": "<image>\n..."}, ...]}
///   ShareGPT   {"images": [...], "conversations": [{"from": "user", ...}, ...]}
///   messages   {"images": [...], "messages": [{"role": "user", "content": "..." or [blocks]}, ...]}
///   Cauldron   {"images": [...], "texts": [{"user": "...", "assistant": "..."}, ...]}
///   questions  {"image": "a.jpg", "question": "...", "answer": "..."}
///   captions   {"image": "a.jpg", "caption": "..."}: the user's turn is the picture
///   Alpaca     {"instruction": "...", "input": "...", "output": "...", "history": [["...", "..."], ...]}
/// or has other names for these, which `columns` tells. There may be "video" or "videos" in place of the images or
/// beside them. In messages a block is {"type": "text", "text"}, {"type": "image"} for the next of "images" or with an
/// "image", "path" or "url" of its own, or {"type": "image_url", "image_url": {"url"} or string}; and the same with
/// "video". A "system" string beside the turns comes first, as in LLaMA-Factory. Numbers and booleans as texts become
/// strings. A picture is a path, or {"bytes", "path"} as Hugging Face's data sets have it. Where no turn has a mark for
/// an image, the marks go to the start of the first user turn, as in LLaVA's own code; videos alike, after the images.
/// Where a record has videos only, as many <image> marks stand for them, as in LLaVA's own data. A list of frames is a
/// `problem`: a folder that holds them can be named instead.
///
/// A turn may have media of its own under the same keys. Every other key of a record, a turn or a block with a value is
/// harmless, a notice of the record, or its problem where it alters learning (src/io/key_rules.h).
///
/// A record that cannot be used does not stop the reading: it comes with its `problem`. data_error names file, line and
/// column where a file cannot be read or an array as a whole is not JSON. Images and videos are not looked at;
/// "file://" before a path is dropped.
std::shared_ptr<const Records> open_records(const std::filesystem::path& path, const RecordSettings& settings);

/// All records of a data set at once, for small ones. Relative paths stay as they are where `image_root` is empty.
std::vector<Record> read_dataset(const std::filesystem::path& path, const std::filesystem::path& image_root = {});

}  // namespace vlmtrain::io

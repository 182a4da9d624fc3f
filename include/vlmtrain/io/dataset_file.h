#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/io/records.h"

namespace vlmtrain::io {

/// Reads a file of conversations: a JSON array of records, or JSON lines (one record a line, blank lines are skipped);
/// which of them, the content tells. A record is, in the words of its format,
///   LLaVA      {"image": "a.jpg" or [...], "conversations": [{"from": "human", "value": "<image>\n..."}, ...]}
///   ShareGPT   {"images": [...], "conversations": [{"from": "user", ...}, ...]}
///   messages   {"images": [...], "messages": [{"role": "user", "content": "..." or [blocks]}, ...]}
/// with "video" or "videos" in place of the images or beside them. In messages a block is {"type": "text", "text"},
/// {"type": "image"} for the next of "images" or with an "image", "path" or "url" of its own, or {"type": "image_url",
/// "image_url": {"url"} or string}; and the same with "video". A "system" string beside the turns comes first, as in
/// LLaMA-Factory. Numbers and booleans as texts become strings. Where no turn has a mark for an image, the marks go to
/// the start of the first user turn, as in LLaVA's own code; videos alike, after the images. Where a record has videos
/// only, as many <image> marks stand for them, as in LLaVA's own data. A list of frames is a `problem`: a folder that
/// holds them can be named instead.
///
/// A record that cannot be used does not stop the reading: it comes with its `problem`. data_error names file, line and
/// column where the file cannot be read or an array as a whole is not JSON. Images and videos are not looked at.
/// Relative paths of them start from `image_root`; "file://" before them is dropped.
std::vector<Record> read_dataset(const std::filesystem::path& file, const std::filesystem::path& image_root = {});

}  // namespace vlmtrain::io

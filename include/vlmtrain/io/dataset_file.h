#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "vlmtrain/io/conversation.h"

namespace vlmtrain::io {

/// One record of a conversation file, in one form for all formats.
struct Record {
  std::string id;    ///< its "id" (string or integer), else "<file stem>:<index from 0>"
  std::string task;  ///< the first of "task", "kind", "category", "answer_type" that is a string, trimmed; else empty
  std::string answer_type;  ///< its "answer_type" if that is a string, trimmed: OPEN or CLOSED in medical VQA
  /// An optional system turn, then user and assistant by turns; as many kImageMark as `images` and
  /// kVideoMark as `videos`.
  std::vector<Turn> turns;
  std::vector<std::string> images;  ///< paths as the file writes them, without "file://"
  std::vector<std::string> videos;  ///< the same; a path is of a file or of a folder of frames
  int64_t line = 0;                 ///< on which the record begins, from 1
  std::string problem;              ///< why the record cannot be used, a sentence; empty where it can
};

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
std::vector<Record> read_dataset(const std::filesystem::path& file);

}  // namespace vlmtrain::io

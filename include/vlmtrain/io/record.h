#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/io/conversation.h"
#include "vlmtrain/io/medium.h"
#include "vlmtrain/io/notice.h"
#include "vlmtrain/io/rle.h"

namespace vlmtrain::io {

/// A mask that belongs to one of a record's pictures: a file or bytes, or a COCO run-length encoding.
struct MaskSource {
  MediaRef file{};  ///< where there is no `rle`
  std::optional<Rle> rle{};
  std::optional<int64_t> value{};  ///< of the file's pixels that are mask; nothing: all that are not 0
  std::string structure{};         ///< what it shows, for scores; may be empty
  int64_t image = 0;               ///< which of the record's pictures it lies in

  bool operator==(const MaskSource&) const = default;
};

/// One record of a data set, in one form for all formats.
struct Record {
  std::string id;    ///< its "id" (string or integer), else "<file stem>:<index from 0>"
  std::string task;  ///< the first of "task", "kind", "category", "answer_type" that is a string, trimmed; else empty
  std::string answer_type;  ///< its "answer_type" if that is a string, trimmed: OPEN or CLOSED in medical VQA
  /// An optional system turn, then user and assistant by turns; as many kImagePlaceholder as `images` and
  /// kVideoPlaceholder as `videos`.
  std::vector<Turn> turns;
  std::vector<MediaRef> images;  ///< pictures and volumes
  std::vector<MediaRef> videos;
  std::vector<MaskSource> masks;      ///< in the order of the tokens of the answers that stand for them
  std::string mask_problem;           ///< why `masks` cannot be used, which only models that draw masks mind
  std::vector<std::string> subjects;  ///< whom its media show, where the data says it ("subject_id")
  std::vector<Notice> notices;        ///< what of it is not used, at most one of a kind
  std::string location;               ///< in the data set, for messages: "line 17"
  std::string problem;                ///< why the record cannot be used, a sentence; empty where it can
};

}  // namespace vlmtrain::io

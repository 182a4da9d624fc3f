#pragma once

#include <string>
#include <vector>

#include "vlmtrain/io/conversation.h"
#include "vlmtrain/io/medium.h"

namespace vlmtrain::io {

/// One record of a data set, in one form for all formats.
struct Record {
  std::string id;    ///< its "id" (string or integer), else "<file stem>:<index from 0>"
  std::string task;  ///< the first of "task", "kind", "category", "answer_type" that is a string, trimmed; else empty
  std::string answer_type;  ///< its "answer_type" if that is a string, trimmed: OPEN or CLOSED in medical VQA
  /// An optional system turn, then user and assistant by turns; as many kImageMark as `images` and
  /// kVideoMark as `videos`.
  std::vector<Turn> turns;
  std::vector<Medium> images;
  std::vector<Medium> videos;
  std::string place;    ///< in the data set, for messages: "line 17"
  std::string problem;  ///< why the record cannot be used, a sentence; empty where it can
};

}  // namespace vlmtrain::io

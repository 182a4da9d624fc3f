#pragma once

#include <vector>

#include "vlmtrain/io/conversation.h"
#include "vlmtrain/io/notice.h"

namespace vlmtrain::io {

/// Adds notices of marks in the texts of a record with media that mean something elsewhere and are words here: places
/// of images in other spellings than kImageMark (`<image 1>`, `<IMAGE>`, `<img>`), and coordinates in the form of
/// Qwen-VL, InternVL and Molmo, which are learned as written although the image may be resized.
void note_marks_in_texts(const std::vector<Turn>& turns, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

#pragma once

#include <vector>

#include "vlmtrain/io/conversation.h"
#include "vlmtrain/io/notice.h"

namespace vlmtrain::io {

/// Adds notices of marks in the texts of a record with media that mean something elsewhere and are words here: places
/// of images in other spellings than kImagePlaceholder (`<image 1>`, `<IMAGE>`, `<img>`), and coordinates in the form
/// of Qwen-VL, InternVL and Molmo, which are learned as written although the image may be resized.
void add_placeholder_notices(const std::vector<Turn>& turns, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

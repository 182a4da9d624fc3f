#pragma once

#include <string>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Adds a notice unless `notices` has one of this kind.
void add_notice(std::string kind, std::string example, std::vector<Notice>& notices);

/// Adds notices about texts that other trainers interpret but this one learns as they are: image
/// placeholders in other spellings (`<image 1>`, `<IMAGE>`, `<img>`) in turns of the user, and
/// unless `are_coordinates_read`, coordinates in the formats of Qwen-VL, InternVL and Molmo, which do
/// not match a resized image.
void add_placeholder_notices(const std::vector<Turn>& turns, bool are_coordinates_read, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

#pragma once

#include <string>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Throws data_error unless turns follow one another as in a conversation: an optional system turn,
/// then alternately the user and the assistant, with at least one answer. Outputs of tools follow
/// an answer that calls tools, and the assistant follows them. REQUIRES: `turns` is not empty.
void check_turn_order(const std::vector<Turn>& turns);

/// Throws data_error if a turn of the assistant has a placeholder of an image or a video.
void check_no_media_in_answers(const std::vector<Turn>& turns);

/// Adds a notice unless `notices` has one of this kind.
void add_notice(std::string kind, std::string example, std::vector<Notice>& notices);

/// Adds notices about texts that other trainers interpret but this one learns as they are: image
/// placeholders in other spellings (`<image 1>`, `<IMAGE>`, `<img>`) in turns of the user, and
/// unless `are_coordinates_read`, coordinates in the formats of Qwen-VL, InternVL and Molmo, which do
/// not match a resized image.
void add_placeholder_notices(const std::vector<Turn>& turns, bool are_coordinates_read, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

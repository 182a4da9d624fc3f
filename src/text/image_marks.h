#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::text {

/// `text` without the line breaks directly after the image marks that open it.
std::string drop_breaks_after_opening_marks(std::string_view text);

/// `text` with all its image marks in front, each followed by a line break; white space around the rest is dropped.
std::string move_marks_to_front(std::string_view text);

std::string replace_marks(std::string_view text, std::string_view image_text);

}  // namespace vlmtrain::text

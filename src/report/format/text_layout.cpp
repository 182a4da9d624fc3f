#include "report/format/text_layout.h"

#include <algorithm>
#include <cmath>

namespace vlmtrain::report {

namespace {

struct Glyphs {
  const char* full;
  const char* left_half;
  const char* right_half;
};

constexpr const char* kStroke = "▏";

Glyphs select_glyphs(BarFill fill, bool unicode) {
  switch (fill) {
    case BarFill::kSolid:
      return unicode ? Glyphs{"█", "▌", "▐"} : Glyphs{"#", "#", "#"};
    case BarFill::kLight:
      return unicode ? Glyphs{"░", "░", " "} : Glyphs{".", ".", "."};
    case BarFill::kMedium:
      return unicode ? Glyphs{"▒", "▒", " "} : Glyphs{"-", "-", "-"};
  }
  return {};
}

}  // namespace

std::string draw_bar(int64_t offset, int64_t bytes, BarFill fill, const BarScale& scale) {
  const auto to_half_column = [&](int64_t byte_offset) {
    const double cells = static_cast<double>(byte_offset) / static_cast<double>(std::max<int64_t>(1, scale.bytes)) *
                         (scale.unicode ? 2 : 1) * scale.columns;
    return static_cast<int>(std::lround(cells)) * (scale.unicode ? 1 : 2);  // in half columns
  };
  const int first = to_half_column(offset);
  const int end = to_half_column(offset + bytes);
  const Glyphs glyphs = select_glyphs(fill, scale.unicode);
  const bool is_stroke = bytes > 0 && first == end;
  const int stroke_column = std::min(first / 2, scale.columns - 1);
  std::string bar;
  for (int column = 0; column < scale.columns; ++column) {
    const bool left = first <= 2 * column && 2 * column < end;
    const bool right = first <= 2 * column + 1 && 2 * column + 1 < end;
    if (is_stroke && column == stroke_column) {
      bar += scale.unicode ? kStroke : "|";
    } else {
      bar += left && right ? glyphs.full : left ? glyphs.left_half : right ? glyphs.right_half : " ";
    }
  }
  return bar;
}

int count_columns(const std::string& text) {
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xc0) != 0x80; }));
}

}  // namespace vlmtrain::report

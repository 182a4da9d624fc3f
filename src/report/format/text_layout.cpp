#include "report/format/text_layout.h"

#include <algorithm>
#include <cmath>
#include <sstream>

namespace vlmtrain::report {

namespace {

struct BarGlyphs {
  const char* full;
  const char* left_half;
  const char* right_half;
};

/// Replaces a bar that is shorter than half a column.
constexpr const char* kThinBar = "▏";

BarGlyphs select_bar_glyphs(BarFill fill, bool unicode) {
  switch (fill) {
    case BarFill::kSolid:
      return unicode ? BarGlyphs{"█", "▌", "▐"} : BarGlyphs{"#", "#", "#"};
    case BarFill::kLight:
      return unicode ? BarGlyphs{"░", "░", " "} : BarGlyphs{".", ".", "."};
    case BarFill::kMedium:
      return unicode ? BarGlyphs{"▒", "▒", " "} : BarGlyphs{"-", "-", "-"};
  }
  return {};
}

}  // namespace

std::string draw_bar(int64_t offset, int64_t bytes, BarFill fill, const BarScale& scale) {
  // Without block characters, ends are rounded to whole columns.
  const auto to_half_column = [&](int64_t byte_offset) {
    const double half_columns = static_cast<double>(byte_offset) /
                                static_cast<double>(std::max<int64_t>(1, scale.max_value)) * (scale.unicode ? 2 : 1) *
                                scale.columns;
    return static_cast<int>(std::lround(half_columns)) * (scale.unicode ? 1 : 2);  // in half columns
  };
  const int first = to_half_column(offset);
  const int end = to_half_column(offset + bytes);
  const BarGlyphs glyphs = select_bar_glyphs(fill, scale.unicode);
  const bool is_thin_bar = bytes > 0 && first == end;
  const int thin_bar_column = std::min(first / 2, scale.columns - 1);
  std::string bar;
  for (int column = 0; column < scale.columns; ++column) {
    const bool covers_left_half = first <= 2 * column && 2 * column < end;
    const bool covers_right_half = first <= 2 * column + 1 && 2 * column + 1 < end;
    if (is_thin_bar && column == thin_bar_column) {
      bar += scale.unicode ? kThinBar : "|";
    } else {
      bar += covers_left_half && covers_right_half ? glyphs.full
             : covers_left_half                    ? glyphs.left_half
             : covers_right_half                   ? glyphs.right_half
                                                   : " ";
    }
  }
  return bar;
}

int count_columns(const std::string& text) {
  // Bytes of the form 10xxxxxx continue a character.
  return static_cast<int>(
      std::count_if(text.begin(), text.end(), [](unsigned char byte) { return (byte & 0xc0) != 0x80; }));
}

namespace {

/// Removes the first `columns` code points of `text` and returns them.
std::string take_columns(std::string& text, int columns) {
  size_t end = 0;
  for (int num_taken = 0; end < text.size(); ++end) {
    const bool begins_character = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (begins_character && num_taken++ == columns) break;
  }
  std::string head = text.substr(0, end);
  text.erase(0, end);
  return head;
}

}  // namespace

std::string wrap_text(const std::string& prefix, const std::string& text, int columns) {
  const int indent = count_columns(prefix);
  const int columns_per_line = std::max(1, columns - indent);
  std::string lines = prefix;
  int used_columns = 0;
  const auto break_line = [&] {
    lines += '\n';
    lines.append(static_cast<size_t>(indent), ' ');
    used_columns = 0;
  };
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (used_columns > 0 && used_columns + 1 + count_columns(word) > columns_per_line) break_line();
    if (used_columns > 0) {
      lines += ' ';
      ++used_columns;
    }
    while (count_columns(word) > columns_per_line) {
      lines += take_columns(word, columns_per_line);
      break_line();
    }
    lines += word;
    used_columns += count_columns(word);
  }
  return lines + "\n";
}

}  // namespace vlmtrain::report

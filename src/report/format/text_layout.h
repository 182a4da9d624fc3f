#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain::report {

/// The scale of the bars of a chart.
struct BarScale {
  int64_t max_value = 1;  ///< value of a bar over all columns: bytes or another quantity
  int columns = 40;       ///< width of the chart
  bool unicode = true;    ///< draw block characters; otherwise ASCII
};

/// The characters that a bar is drawn with.
enum class BarFill { kSolid, kLight, kMedium };

/// Returns the bar of `bytes` that begins at `offset`, padded with spaces to scale.columns. Its
/// ends have a resolution of half a column with block characters, of a column otherwise. Bars of
/// adjacent ranges have neither gap nor overlap. A range too small to see becomes a thin stroke.
std::string draw_bar(int64_t offset, int64_t bytes, BarFill fill, const BarScale& scale);

/// Returns the number of columns of UTF-8 text: one for each code point.
int count_columns(const std::string& text);

/// Wraps `text` at spaces into lines of at most `columns`; longer words are broken. The first line
/// begins with `prefix`, the others with as many spaces. Ends with a line break.
std::string wrap_text(const std::string& prefix, const std::string& text, int columns);

}  // namespace vlmtrain::report

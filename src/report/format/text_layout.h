#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain::report {

/// The scale of bars.
struct BarScale {
  int64_t bytes = 1;
  int columns = 40;
  bool unicode = true;
};

/// The characters of a bar.
enum class BarFill { kSolid, kLight, kMedium };

/// Returns the bar of `bytes` that begins at byte `offset`, scale.columns wide: in half columns
/// with block characters, otherwise in whole columns. Bars of adjacent ranges have neither gap nor
/// overlap. A range too small to see is a thin stroke.
std::string draw_bar(int64_t offset, int64_t bytes, BarFill fill, const BarScale& scale);

/// Returns the columns of UTF-8 text, one per code point.
int count_columns(const std::string& text);

/// Wraps `text` at spaces into lines of at most `columns`; longer words are broken. The first line
/// begins with `prefix`, the others with as many spaces. Ends with a line break.
std::string wrap_text(const std::string& prefix, const std::string& text, int columns);

}  // namespace vlmtrain::report

#pragma once

#include <cstdint>
#include <string>

namespace vlmtrain::report {

/// Where bars are drawn: so many columns for so many bytes.
struct BarScale {
  int64_t bytes = 1;
  int columns = 40;
  bool unicode = true;
};

enum class BarFill { kSolid, kLight, kMedium };

/// The bar of `bytes` that begins at byte `offset`: scale.columns wide, in half columns with block characters, else in
/// whole ones. Bars that follow each other in bytes do so in the picture, without gap or overlap. What is too little to
/// be seen is a thin stroke; nothing is nothing.
std::string draw_bar(int64_t offset, int64_t bytes, BarFill fill, const BarScale& scale);

/// Columns that text in UTF-8 takes, at one a code point.
int count_columns(const std::string& text);

/// `text` in lines of at most `columns`, broken at spaces, and inside a word only where it is longer than a line. The
/// first line begins with `prefix`, the others with as many spaces. Ends with a line break.
std::string wrap_text(const std::string& prefix, const std::string& text, int columns);

}  // namespace vlmtrain::report

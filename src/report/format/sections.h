#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/report/plan_text.h"

namespace vlmtrain::report {

/// The weight of a row, by font or color.
enum class Emphasis { kNormal, kStrong, kFaint };

/// A row of a table. Missing cells at its end are empty.
struct TableRow {
  std::vector<std::string> cells;
  Emphasis emphasis = Emphasis::kNormal;
  int64_t bar = 0;  ///< value drawn after the cells as a bar, in proportion to those of the other rows
};

/// A table. Columns without any content are not shown.
struct Table {
  std::vector<std::string> headers = {};  ///< empty for rows that need none, such as facts
  /// One letter per column: 'l' for text, which is wrapped if there is little space, 'r' for
  /// numbers. Further columns are numbers.
  std::string_view alignment = "l";
  /// Rows that a terminal shows; it counts the others. Pages collapse long lists.
  size_t max_terminal_rows = SIZE_MAX;
  std::vector<TableRow> rows = {};

  bool is_text_column(size_t column) const { return column < alignment.size() && alignment[column] == 'l'; }
  /// Returns the value of the longest bar; 0 without bars.
  int64_t max_bar() const;
};

/// A titled part of a report, with its content in the order of the fields. Control characters in
/// strings are shown as escapes.
struct Section {
  std::string title;
  std::vector<std::string> notes = {};
  std::vector<Table> tables = {};
  std::string terminal_lines = {};  ///< shown in terminals only
  std::string html = {};            ///< HTML for pages only, such as images
};

/// Entries of a list that terminals show.
inline constexpr size_t kMaxTerminalEntries = 5;

/// A writer of sections as text for a terminal.
class TextWriter {
 public:
  explicit TextWriter(const TextStyle& style);

  /// Returns the width of the text.
  int columns() const { return columns_; }
  bool unicode() const { return style_.unicode; }
  const std::string& text() const { return text_; }

  /// Adds lines in a color: parameters of ANSI's Select Graphic Rendition, such as "1;31". `lines`
  /// may end with a line break.
  void add_lines(const char* color, std::string_view lines);
  /// Adds an empty line and the title.
  void add_heading(std::string_view title);
  /// Adds a line with a bar of draw_bar() after the label.
  void add_bar(const std::string& label, std::string bar, const char* color);
  /// Adds text wrapped after `prefix`.
  void add_note(const std::string& text, const std::string& prefix = "  ");
  void add_table(const Table& table);
  void add_section(const Section& section);

 private:
  void add_row(const Table& table, const TableRow& row, const std::vector<int>& widths);

  TextStyle style_;
  int columns_;
  std::string text_;
};

/// Returns the section as HTML, for pages with common.css.
std::string render_section_html(const Section& section);

}  // namespace vlmtrain::report

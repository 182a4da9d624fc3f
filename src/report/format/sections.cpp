#include "report/format/sections.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <sstream>

#include "report/format/html.h"
#include "report/format/text_layout.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::report {

namespace {

/// Tables need 64 columns. Text wider than 100 is hard to read.
constexpr int kMinTextColumns = 64;
constexpr int kMaxTextColumns = 100;
/// Columns of text that a table keeps if its numbers need the space. Not tuned.
constexpr int kMinCellColumns = 8;
/// Characters of a cell, so that it takes a few lines. Not tuned.
constexpr size_t kMaxCellCharacters = 300;
constexpr int kColumnGap = 2;

// Parameters of ANSI's Select Graphic Rendition.
constexpr const char* kBoldColor = "1";
constexpr const char* kFaintColor = "2";
constexpr const char* kBarColor = "34";

std::string get_cell(const TableRow& row, size_t column) {
  return column < row.cells.size() ? make_excerpt(row.cells[column], kMaxCellCharacters) : "";
}

/// Returns the width of each column: that of its content, or less in columns of text that would
/// exceed `max_columns`. Columns without content have width 0.
std::vector<int> compute_column_widths(const Table& table, size_t num_rows, int max_columns) {
  std::vector<int> widths;
  for (const TableRow& row : table.rows) widths.resize(std::max(widths.size(), row.cells.size()));
  int excess = -max_columns;
  for (size_t column = 0; column < widths.size(); ++column) {
    for (size_t row = 0; row < num_rows; ++row)
      widths[column] = std::max(widths[column], count_columns(get_cell(table.rows[row], column)));
    if (widths[column] == 0) continue;
    if (!table.headers.empty()) widths[column] = std::max(widths[column], count_columns(table.headers[column]));
    excess += kColumnGap + widths[column];
  }
  for (; excess > 0; --excess) {
    int* widest = nullptr;
    for (size_t column = 0; column < widths.size(); ++column) {
      if (table.is_text_column(column) && (widest == nullptr || widths[column] > *widest)) widest = &widths[column];
    }
    if (widest == nullptr || *widest <= kMinCellColumns) break;
    --*widest;
  }
  return widths;
}

}  // namespace

int64_t Table::max_bar() const {
  int64_t max = 0;
  for (const TableRow& row : rows) max = std::max(max, row.bar);
  return max;
}

TextWriter::TextWriter(const TextStyle& style)
    : style_(style), columns_(std::clamp(style.width, kMinTextColumns, kMaxTextColumns)) {}

void TextWriter::add_lines(const char* color, std::string_view lines) {
  if (lines.ends_with('\n')) lines.remove_suffix(1);
  text_ +=
      style_.color && *color != '\0' ? fmt::format("\x1b[{}m{}\x1b[0m\n", color, lines) : fmt::format("{}\n", lines);
}

void TextWriter::add_heading(std::string_view title) {
  text_ += "\n";
  add_lines(kBoldColor, wrap_text("", to_printable(title), columns_));
}

void TextWriter::add_bar(const std::string& label, std::string bar, const char* color) {
  bar.erase(bar.find_last_not_of(' ') + 1);
  text_ += label;
  if (bar.empty()) {
    text_ += "\n";
  } else {
    text_ += "  ";
    add_lines(color, bar);
  }
}

void TextWriter::add_note(const std::string& text, const std::string& prefix) {
  add_lines(kFaintColor, wrap_text(prefix, to_printable(text), columns_));
}

void TextWriter::add_row(const Table& table, const TableRow& row, const std::vector<int>& widths) {
  std::vector<std::istringstream> cells;
  for (size_t column = 0; column < widths.size(); ++column)
    cells.emplace_back(wrap_text("", get_cell(row, column), std::max(1, widths[column])));
  const auto read_line = [&] {
    std::string line;
    for (size_t column = 0; column < widths.size(); ++column) {
      std::string cell;
      std::getline(cells[column], cell);
      if (widths[column] == 0) continue;
      const std::string padding(static_cast<size_t>(std::max(0, widths[column] - count_columns(cell))), ' ');
      line += std::string(kColumnGap, ' ') + (table.is_text_column(column) ? cell + padding : padding + cell);
    }
    return line.erase(line.find_last_not_of(' ') + 1);
  };
  const char* const color = row.emphasis == Emphasis::kStrong  ? kBoldColor
                            : row.emphasis == Emphasis::kFaint ? kFaintColor
                                                               : "";
  for (std::string line = read_line(); !line.empty(); line = read_line()) {
    if (row.bar == 0) {
      add_lines(color, line);
    } else {
      const BarScale scale{.max_value = table.max_bar(),
                           .columns = columns_ - count_columns(line) - kColumnGap,
                           .unicode = style_.unicode};
      add_bar(line, draw_bar(0, row.bar, BarFill::kSolid, scale), kBarColor);
    }
  }
}

void TextWriter::add_table(const Table& table) {
  const size_t num_rows = std::min(table.rows.size(), table.max_terminal_rows);
  const auto widths = compute_column_widths(table, num_rows, columns_);
  if (!table.headers.empty()) add_row(table, {table.headers, Emphasis::kFaint}, widths);
  for (size_t i = 0; i < num_rows; ++i) add_row(table, table.rows[i], widths);
  if (num_rows < table.rows.size()) {
    add_note(fmt::format("and {} more: --json, --html",
                         format_with_commas(static_cast<int64_t>(table.rows.size() - num_rows))));
  }
}

void TextWriter::add_section(const Section& section) {
  add_heading(section.title);
  for (const auto& note : section.notes) add_note(note);
  for (const auto& table : section.tables) add_table(table);
  if (!section.terminal_lines.empty()) add_lines("", to_printable_lines(section.terminal_lines));
}

namespace {

/// Rows of a list that are visible before the reader expands it. Not tuned.
constexpr size_t kMaxVisibleRows = 10;
/// Characters of a cell that are visible before the reader expands it. Not tuned.
constexpr size_t kMaxVisibleCharacters = 300;

std::string render_details(const std::string& summary, const std::string& content) {
  return fmt::format("<details><summary>{}</summary>{}</details>\n", summary, content);
}

std::string render_cell(const std::string& text) {
  std::string html = escape_html_line(text);
  if (text.size() <= kMaxVisibleCharacters) return html;
  return render_details(escape_html(make_excerpt(text, kMaxVisibleCharacters)), html);
}

/// Returns the columns with content.
std::set<size_t> find_used_columns(const Table& table) {
  std::set<size_t> columns;
  for (const TableRow& row : table.rows) {
    for (size_t column = 0; column < row.cells.size(); ++column) {
      if (!row.cells[column].empty()) columns.insert(column);
    }
  }
  return columns;
}

std::string render_row(const Table& table, const TableRow& row, const std::set<size_t>& columns, const char* tag) {
  std::string html = row.emphasis == Emphasis::kStrong ? "<tr class=\"total\">" : "<tr>";
  for (const size_t column : columns) {
    html += fmt::format("<{0}{1}>{2}</{0}>", tag, table.is_text_column(column) ? R"( class="text")" : "",
                        column < row.cells.size() ? render_cell(row.cells[column]) : "");
  }
  if (row.bar > 0) {
    html += fmt::format(R"(<td class="bar"><div style="width:{:.1f}%"></div></td>)",
                        100 * static_cast<double>(row.bar) / static_cast<double>(table.max_bar()));
  }
  return html + "</tr>\n";
}

std::string render_table(const Table& table) {
  const auto columns = find_used_columns(table);
  const auto render_rows = [&](size_t begin, size_t end) {
    std::string html = "<table>";
    if (!table.headers.empty())
      html += fmt::format("<thead>{}</thead>", render_row(table, {table.headers}, columns, "th"));
    html += "<tbody>\n";
    for (size_t i = begin; i < end; ++i) html += render_row(table, table.rows[i], columns, "td");
    return html + "</tbody></table>\n";
  };
  const size_t num_rows = table.rows.size();
  const size_t num_visible = table.max_terminal_rows == SIZE_MAX ? num_rows : std::min(kMaxVisibleRows, num_rows);
  std::string html = render_rows(0, num_visible);
  if (num_visible == num_rows) return html;
  return html + render_details(format_with_commas(static_cast<int64_t>(num_rows - num_visible)) + " more",
                               render_rows(num_visible, num_rows));
}

}  // namespace

std::string render_section_html(const Section& section) {
  // Several columns of text, and images, take the width of the page.
  bool is_wide = !section.html.empty();
  std::string content;
  for (const auto& note : section.notes) content += fmt::format("<p class=\"hint\">{}</p>\n", escape_html_line(note));
  for (const auto& table : section.tables) {
    content += render_table(table);
    is_wide = is_wide || std::ranges::count(table.alignment, 'l') > 1;
  }
  return fmt::format("<section class=\"panel{}\">\n<h2>{}</h2>\n{}{}</section>\n", is_wide ? " wide" : "",
                     escape_html_line(section.title), content, section.html);
}

}  // namespace vlmtrain::report

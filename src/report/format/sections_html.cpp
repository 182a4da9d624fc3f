#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "report/format/html.h"
#include "report/format/sections.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::report {

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

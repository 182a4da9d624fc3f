#include "report/wrapped_text.h"

#include <algorithm>
#include <sstream>

#include "report/format/text_layout.h"

namespace vlmtrain::report {

namespace {

/// Cuts the first `columns` code points off `text` and returns them.
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
  const int line_columns = std::max(1, columns - indent);
  std::string lines = prefix;
  int num_used = 0;
  const auto break_line = [&] {
    lines += '\n';
    lines.append(static_cast<size_t>(indent), ' ');
    num_used = 0;
  };
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (num_used > 0 && num_used + 1 + count_columns(word) > line_columns) break_line();
    if (num_used > 0) {
      lines += ' ';
      ++num_used;
    }
    while (count_columns(word) > line_columns) {
      lines += take_columns(word, line_columns);
      break_line();
    }
    lines += word;
    num_used += count_columns(word);
  }
  return lines + "\n";
}

}  // namespace vlmtrain::report

#include "report/wrapped_text.h"

#include <algorithm>
#include <sstream>

#include "report/plan_bars.h"

namespace vlmtrain::report {

namespace {

/// Cuts the first `columns` code points off `text` and returns them.
std::string cut(std::string& text, int columns) {
  size_t end = 0;
  for (int taken = 0; end < text.size(); ++end) {
    const bool begins_character = (static_cast<unsigned char>(text[end]) & 0xc0) != 0x80;
    if (begins_character && taken++ == columns) break;
  }
  std::string head = text.substr(0, end);
  text.erase(0, end);
  return head;
}

}  // namespace

std::string wrapped(const std::string& first, const std::string& text, int columns) {
  const int indent = text_columns(first);
  const int room = std::max(1, columns - indent);
  std::string lines = first;
  int used = 0;
  const auto break_line = [&] {
    lines += '\n';
    lines.append(static_cast<size_t>(indent), ' ');
    used = 0;
  };
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    if (used > 0 && used + 1 + text_columns(word) > room) break_line();
    if (used > 0) {
      lines += ' ';
      ++used;
    }
    while (text_columns(word) > room) {
      lines += cut(word, room);
      break_line();
    }
    lines += word;
    used += text_columns(word);
  }
  return lines + "\n";
}

}  // namespace vlmtrain::report

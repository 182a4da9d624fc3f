#include "text/image_marks.h"

#include "vlmtrain/text/conversation.h"

namespace vlmtrain::text {
namespace {

constexpr std::string_view kAsciiSpace = " \t\n\v\f\r";

std::string_view trim(std::string_view text) {
  const size_t begin = text.find_first_not_of(kAsciiSpace);
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(kAsciiSpace) + 1 - begin);
}

void drop_line_break(std::string_view& text) {
  if (text.starts_with("\r\n")) {
    text.remove_prefix(2);
  } else if (text.starts_with('\n')) {
    text.remove_prefix(1);
  }
}

}  // namespace

std::string drop_breaks_after_opening_marks(std::string_view text) {
  std::string out;
  while (text.starts_with(kImageMark) || text.starts_with(kVideoMark)) {
    const std::string_view mark = text.starts_with(kImageMark) ? kImageMark : kVideoMark;
    out += mark;
    text.remove_prefix(mark.size());
    drop_line_break(text);
  }
  return out.append(text);
}

std::string move_marks_to_front(std::string_view text) {
  std::string marks;
  std::string rest;
  for (size_t mark = text.find(kImageMark); mark != std::string_view::npos; mark = text.find(kImageMark)) {
    marks.append(kImageMark).append("\n");
    rest.append(text.substr(0, mark));
    text.remove_prefix(mark + kImageMark.size());
  }
  if (marks.empty()) return std::string(text);
  return marks.append(trim(rest.append(text)));
}

std::string replace_marks(std::string_view text, std::string_view image_text) {
  std::string out;
  for (size_t mark = text.find(kImageMark); mark != std::string_view::npos; mark = text.find(kImageMark)) {
    out.append(text.substr(0, mark)).append(image_text);
    text.remove_prefix(mark + kImageMark.size());
  }
  return out.append(text);
}

}  // namespace vlmtrain::text

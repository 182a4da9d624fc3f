#include "text/media_marks.h"

#include <algorithm>

#include "vlmtrain/text/conversation.h"

namespace vlmtrain::text {
namespace {

void drop_line_break(std::string_view& text) {
  if (text.starts_with("\r\n")) {
    text.remove_prefix(2);
  } else if (text.starts_with('\n')) {
    text.remove_prefix(1);
  }
}

}  // namespace

std::vector<MediaPiece> cut_at_marks(std::string_view text) {
  std::vector<MediaPiece> pieces;
  bool opening = true;
  while (!text.empty()) {
    const size_t image = text.find(kImageMark);
    const size_t video = text.find(kVideoMark);
    const size_t mark = std::min(image, video);
    if (mark > 0) {
      pieces.push_back({MediaPiece::Kind::kText, text.substr(0, mark)});
      opening = false;
    }
    if (mark == std::string_view::npos) break;
    const bool is_image = image < video;
    pieces.push_back({is_image ? MediaPiece::Kind::kImage : MediaPiece::Kind::kVideo});
    text.remove_prefix(mark + (is_image ? kImageMark : kVideoMark).size());
    if (opening) drop_line_break(text);
  }
  return pieces;
}

}  // namespace vlmtrain::text

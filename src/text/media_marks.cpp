#include "text/media_marks.h"

#include "vlmtrain/io/marks.h"

namespace vlmtrain::text {
namespace {

size_t line_break_at(std::string_view text) {
  if (text.starts_with("\r\n")) return 2;
  return text.starts_with('\n') ? 1 : 0;
}

}  // namespace

std::vector<MediaPiece> cut_at_marks(const Turn& turn) {
  const std::string_view text = turn.text;
  std::vector<MediaPiece> pieces;
  bool opening = true;
  size_t at = 0;
  const auto add_text = [&](size_t end) {
    if (end <= at) return;
    pieces.push_back({MediaPiece::Kind::kText, text.substr(at, end - at)});
    opening = false;
  };
  for (const io::Mark& mark : io::find_marks(turn)) {
    add_text(mark.begin);
    pieces.push_back({mark.is_video ? MediaPiece::Kind::kVideo : MediaPiece::Kind::kImage});
    at = mark.begin + kImageMark.size();
    if (opening) at += line_break_at(text.substr(at));
  }
  add_text(text.size());
  return pieces;
}

}  // namespace vlmtrain::text

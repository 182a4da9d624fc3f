#include "text/media_marks.h"

#include "vlmtrain/io/marks.h"

namespace vlmtrain::text {
namespace {

size_t count_leading_line_break(std::string_view text) {
  if (text.starts_with("\r\n")) return 2;
  return text.starts_with('\n') ? 1 : 0;
}

}  // namespace

std::vector<MediaPiece> split_media_marks(const Turn& turn) {
  const std::string_view text = turn.text;
  std::vector<MediaPiece> pieces;
  bool is_at_start = true;
  size_t pos = 0;
  const auto add_text = [&](size_t end) {
    if (end <= pos) return;
    pieces.push_back({MediaPiece::Kind::kText, text.substr(pos, end - pos)});
    is_at_start = false;
  };
  for (const io::MediaPlaceholder& mark : io::find_placeholders(turn)) {
    add_text(mark.begin);
    pieces.push_back({mark.is_video ? MediaPiece::Kind::kVideo : MediaPiece::Kind::kImage});
    pos = mark.begin + kImagePlaceholder.size();
    if (is_at_start) pos += count_leading_line_break(text.substr(pos));
  }
  add_text(text.size());
  return pieces;
}

}  // namespace vlmtrain::text

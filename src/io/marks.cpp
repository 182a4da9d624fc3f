#include "vlmtrain/io/marks.h"

#include <algorithm>
#include <string_view>

namespace vlmtrain::io {

std::vector<Mark> find_marks(const Turn& turn) {
  static_assert(kImageMark.size() == kVideoMark.size());
  const std::string_view text = turn.text;
  std::vector<Mark> marks;
  for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
    const std::string_view here = text.substr(at, kImageMark.size());
    const bool is_mark = here == kImageMark || here == kVideoMark;
    if (!is_mark || std::ranges::binary_search(turn.literal_marks, at)) continue;
    marks.push_back({.begin = at, .is_video = here == kVideoMark});
  }
  return marks;
}

}  // namespace vlmtrain::io

#include "vlmtrain/io/conversation.h"

#include <algorithm>
#include <string_view>

namespace vlmtrain::io {

std::vector<MediaPlaceholder> find_placeholders(const Turn& turn) {
  static_assert(kImagePlaceholder.size() == kVideoPlaceholder.size());
  const std::string_view text = turn.text;
  std::vector<MediaPlaceholder> placeholders;
  for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
    const std::string_view candidate = text.substr(pos, kImagePlaceholder.size());
    const bool is_placeholder = candidate == kImagePlaceholder || candidate == kVideoPlaceholder;
    if (!is_placeholder || std::ranges::binary_search(turn.literal_placeholders, pos)) continue;
    placeholders.push_back({.begin = pos, .is_video = candidate == kVideoPlaceholder});
  }
  return placeholders;
}

}  // namespace vlmtrain::io

#include "io/text_marks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

constexpr std::string_view kForeignPlaceholder = "a mark of an image that is no place here (write <image> or <video>)";
constexpr std::string_view kCoordinateText =
    "coordinates in a text, which are learned as written: those in pixels of the file do not fit a resized image";

/// The longest mark that is looked for, `<image_placeholder>`, with room for a number.
constexpr size_t kMaxTagLength = 24;

bool begins_with_word(std::string_view tag, std::string_view word) {
  return tag.size() >= word.size() && std::ranges::equal(tag.substr(0, word.size()), word, [](char c, char expected) {
           return std::tolower(static_cast<unsigned char>(c)) == expected;
         });
}

/// `tag`: from "<" to ">". HTML with attributes is text.
bool is_foreign_placeholder(std::string_view tag) {
  if (tag == kImagePlaceholder || tag == kVideoPlaceholder || tag.find('=') != std::string_view::npos) return false;
  return std::ranges::any_of(std::array<std::string_view, 3>{"<image", "<img", "<video"},
                             [tag](std::string_view word) { return begins_with_word(tag, word); });
}

bool is_coordinate(std::string_view tag) {
  return tag == "<|box_start|>" || tag == "<|point_start|>" || tag == "<box>" || tag == "<point>";
}

void add_notice_once(std::string_view kind, std::string_view example, std::vector<Notice>& notices) {
  if (std::ranges::count(notices, kind, &Notice::kind) > 0) return;
  notices.push_back({.kind = std::string(kind), .example = make_excerpt(std::string(example))});
}

}  // namespace

void add_placeholder_notices(const std::vector<Turn>& turns, std::vector<Notice>& notices) {
  for (const Turn& turn : turns) {
    const std::string_view text = turn.text;
    for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
      const size_t end = text.substr(pos, kMaxTagLength).find('>');
      if (end == std::string_view::npos) continue;
      const std::string_view tag = text.substr(pos, end + 1);
      if (turn.role == Role::kUser && is_foreign_placeholder(tag)) add_notice_once(kForeignPlaceholder, tag, notices);
      if (is_coordinate(tag)) add_notice_once(kCoordinateText, tag, notices);
    }
    for (const std::string_view key : {"\"bbox_2d\"", "\"point_2d\""}) {
      if (text.find(key) != std::string_view::npos) add_notice_once(kCoordinateText, key, notices);
    }
  }
}

}  // namespace vlmtrain::io

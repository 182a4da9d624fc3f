#include "io/text_marks.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>

#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

constexpr std::string_view kOtherPlace = "a mark of an image that is no place here (write <image> or <video>)";
constexpr std::string_view kCoordinates =
    "coordinates in a text, which are learned as written: those in pixels of the file do not fit a resized image";

/// The longest mark that is looked for, `<image_placeholder>`, with room for a number.
constexpr size_t kLongestMark = 24;

bool begins_with_word(std::string_view mark, std::string_view word) {
  return mark.size() >= word.size() && std::ranges::equal(mark.substr(0, word.size()), word, [](char c, char wanted) {
           return std::tolower(static_cast<unsigned char>(c)) == wanted;
         });
}

/// `mark`: from "<" to ">". HTML with attributes is text.
bool is_other_place(std::string_view mark) {
  if (mark == kImageMark || mark == kVideoMark || mark.find('=') != std::string_view::npos) return false;
  return std::ranges::any_of(std::array<std::string_view, 3>{"<image", "<img", "<video"},
                             [mark](std::string_view word) { return begins_with_word(mark, word); });
}

bool is_coordinate(std::string_view mark) {
  return mark == "<|box_start|>" || mark == "<|point_start|>" || mark == "<box>" || mark == "<point>";
}

void add(std::string_view kind, std::string_view example, std::vector<Notice>& notices) {
  if (std::ranges::count(notices, kind, &Notice::kind) > 0) return;
  notices.push_back({.kind = std::string(kind), .example = excerpt(std::string(example))});
}

}  // namespace

void note_marks_in_texts(const std::vector<Turn>& turns, std::vector<Notice>& notices) {
  for (const Turn& turn : turns) {
    const std::string_view text = turn.text;
    for (size_t at = text.find('<'); at != std::string_view::npos; at = text.find('<', at + 1)) {
      const size_t end = text.substr(at, kLongestMark).find('>');
      if (end == std::string_view::npos) continue;
      const std::string_view mark = text.substr(at, end + 1);
      if (turn.role == Role::kUser && is_other_place(mark)) add(kOtherPlace, mark, notices);
      if (is_coordinate(mark)) add(kCoordinates, mark, notices);
    }
    for (const std::string_view key : {"\"bbox_2d\"", "\"point_2d\""}) {
      if (text.find(key) != std::string_view::npos) add(kCoordinates, key, notices);
    }
  }
}

}  // namespace vlmtrain::io

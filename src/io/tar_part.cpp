#include "io/tar_part.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <span>
#include <vector>

#include "vlmtrain/base/file_kind.h"

namespace vlmtrain::io {
namespace {

using Words = std::span<const std::string_view>;

constexpr auto kPictures = std::to_array<std::string_view>({"jpg",  "jpeg", "jpe", "jfif", "pjpeg", "pjp",  "png",
                                                            "webp", "gif",  "bmp", "tif",  "tiff",  "avif", "heic",
                                                            "heif", "jxl",  "jp2", "ppm",  "pgm",   "img",  "image"});
constexpr auto kVideos =
    std::to_array<std::string_view>({"mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg", "wmv", "flv", "ts"});
constexpr auto kAudios =
    std::to_array<std::string_view>({"wav", "mp3", "flac", "ogg", "oga", "opus", "m4a", "aac", "wma", "aiff"});

/// What image data sets call masks next to their images.
constexpr auto kMaskWords = std::to_array<std::string_view>(
    {"mask",        "masks", "seg",    "segs",     "segm",       "segmentation", "segmentations",
     "segmask",     "label", "labels", "labelmap", "annotation", "annotations",  "gt",
     "groundtruth", "matte", "alpha",  "panoptic", "semantic",   "instance",     "instances"});
/// What they call images that are made of others, some of which show the answer.
constexpr auto kDerivedWords =
    std::to_array<std::string_view>({"thumb", "thumbs", "thumbnail", "thumbnails", "preview", "previews", "overlay",
                                     "overlays", "heatmap", "heatmaps"});

bool is_in(std::string_view word, Words words) {
  return std::ranges::find(words, word) != words.end();
}

bool is_number(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// Its runs of letters: "liver", "mask" of "liver_mask2".
std::vector<std::string_view> letters_in(std::string_view name) {
  std::vector<std::string_view> words;
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  for (size_t begin = 0; begin < name.size();) {
    size_t end = begin;
    while (end < name.size() && is_letter(name[end])) ++end;
    if (end > begin) words.push_back(name.substr(begin, end - begin));
    begin = end + 1;
  }
  return words;
}

TarPartKind format_kind(std::string_view format) {
  if (format == "json") return TarPartKind::kJson;
  if (format == "txt") return TarPartKind::kText;
  if (is_in(format, kPictures)) return TarPartKind::kPicture;
  if (is_in(format, kVideos)) return TarPartKind::kVideo;
  return is_in(format, kAudios) ? TarPartKind::kAudio : TarPartKind::kOther;
}

}  // namespace

std::string lower_case(std::string_view text) {
  std::string lower(text);
  std::ranges::transform(lower, lower.begin(), [](char letter) {
    return letter >= 'A' && letter <= 'Z' ? static_cast<char>(letter - 'A' + 'a') : letter;
  });
  return lower;
}

TarPartKind tar_part_kind(std::string_view ending) {
  const std::string lower = lower_case(ending);
  std::string_view name = lower;  // becomes what stands before the format
  TarPartKind kind = TarPartKind::kVolume;
  if (!is_named_like_a_volume("." + lower)) {
    size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && is_number(name.substr(dot + 1))) {
      name = name.substr(0, dot);
      dot = name.rfind('.');
    }
    kind = format_kind(name.substr(dot + 1));
    name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  } else {
    name = name.substr(0, name.rfind("nii"));
  }
  if (kind != TarPartKind::kPicture && kind != TarPartKind::kVolume) return kind;
  const auto words = letters_in(name);
  const bool is_mask = std::ranges::any_of(words, [](std::string_view word) { return is_in(word, kMaskWords); });
  if (is_mask) return kind == TarPartKind::kPicture ? TarPartKind::kMask : TarPartKind::kDerived;
  const bool is_derived = std::ranges::any_of(words, [](std::string_view word) { return is_in(word, kDerivedWords); });
  return is_derived ? TarPartKind::kDerived : kind;
}

}  // namespace vlmtrain::io

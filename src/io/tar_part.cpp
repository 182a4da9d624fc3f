#include "io/tar_part.h"

#include <algorithm>
#include <array>
#include <ranges>
#include <span>
#include <vector>

#include "vlmtrain/base/file_kind.h"

namespace vlmtrain::io {
namespace {

using WordList = std::span<const std::string_view>;

constexpr auto kImageFormats = std::to_array<std::string_view>(
    {"jpg",  "jpeg", "jpe",  "jfif", "pjpeg", "pjp", "png", "webp", "gif", "bmp",  "tif",
     "tiff", "avif", "heic", "heif", "jxl",   "jp2", "ppm", "pgm",  "img", "image"});
constexpr auto kVideoFormats =
    std::to_array<std::string_view>({"mp4", "mkv", "webm", "avi", "mov", "m4v", "mpg", "mpeg", "wmv", "flv", "ts"});
constexpr auto kAudioFormats =
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

bool contains_word(std::string_view word, WordList words) {
  return std::ranges::find(words, word) != words.end();
}

bool is_digits(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// Its runs of letters: "liver", "mask" of "liver_mask2".
std::vector<std::string_view> split_words(std::string_view name) {
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

TarFileKind get_format_kind(std::string_view format) {
  if (format == "json") return TarFileKind::kJson;
  if (format == "txt") return TarFileKind::kText;
  if (contains_word(format, kImageFormats)) return TarFileKind::kImage;
  if (contains_word(format, kVideoFormats)) return TarFileKind::kVideo;
  return contains_word(format, kAudioFormats) ? TarFileKind::kAudio : TarFileKind::kOther;
}

}  // namespace

std::string to_lower_ascii(std::string_view text) {
  std::string lower_text(text);
  std::ranges::transform(lower_text, lower_text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower_text;
}

TarFileKind get_tar_file_kind(std::string_view extension) {
  const std::string lower_text = to_lower_ascii(extension);
  std::string_view name = lower_text;  // becomes what stands before the format
  TarFileKind kind = TarFileKind::kVolume;
  if (!has_nifti_extension("." + lower_text)) {
    size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && is_digits(name.substr(dot + 1))) {
      name = name.substr(0, dot);
      dot = name.rfind('.');
    }
    kind = get_format_kind(name.substr(dot + 1));
    name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  } else {
    name = name.substr(0, name.rfind("nii"));
  }
  if (kind != TarFileKind::kImage && kind != TarFileKind::kVolume) return kind;
  const auto words = split_words(name);
  const bool is_mask =
      std::ranges::any_of(words, [](std::string_view word) { return contains_word(word, kMaskWords); });
  if (is_mask) return kind == TarFileKind::kImage ? TarFileKind::kMask : TarFileKind::kDerived;
  const bool is_derived =
      std::ranges::any_of(words, [](std::string_view word) { return contains_word(word, kDerivedWords); });
  return is_derived ? TarFileKind::kDerived : kind;
}

}  // namespace vlmtrain::io

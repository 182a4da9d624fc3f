#include "io/dataset/tar_files.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <ranges>
#include <span>
#include <utility>
#include <vector>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"

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

/// Words that mark a mask in the file names of image data sets.
constexpr auto kMaskWords = std::to_array<std::string_view>(
    {"mask",        "masks", "seg",    "segs",     "segm",       "segmentation", "segmentations",
     "segmask",     "label", "labels", "labelmap", "annotation", "annotations",  "gt",
     "groundtruth", "matte", "alpha",  "panoptic", "semantic",   "instance",     "instances"});
/// Words that mark an image as derived from another image. Such images are not used, because some
/// show the answer, as overlays do.
constexpr auto kDerivedMediaWords =
    std::to_array<std::string_view>({"thumb", "thumbs", "thumbnail", "thumbnails", "preview", "previews", "overlay",
                                     "overlays", "heatmap", "heatmaps"});

bool is_in_word_list(std::string_view word, WordList words) {
  return std::ranges::find(words, word) != words.end();
}

bool is_all_digits(std::string_view word) {
  return !word.empty() && std::ranges::all_of(word, [](char c) { return c >= '0' && c <= '9'; });
}

/// Returns the runs of lowercase letters: "liver" and "mask" for "liver_mask2".
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

TarFileKind classify_format(std::string_view format) {
  if (format == "json") return TarFileKind::kJson;
  if (format == "txt") return TarFileKind::kText;
  if (is_in_word_list(format, kImageFormats)) return TarFileKind::kImage;
  if (is_in_word_list(format, kVideoFormats)) return TarFileKind::kVideo;
  return is_in_word_list(format, kAudioFormats) ? TarFileKind::kAudio : TarFileKind::kOther;
}

constexpr std::array kMaskKeys{"mask", "masks"};

std::string get_file_name(const RecordJson& path) {
  const auto& text = path.get_ref<const std::string&>();
  return text.substr(text.rfind('/') + 1);
}

/// Returns the path in a list entry, which is a path or an object with "path". Returns nullptr for
/// other entries.
const RecordJson* find_entry_path(const RecordJson& entry) {
  if (entry.is_string()) return &entry;
  if (!entry.is_object()) return nullptr;
  const auto path = entry.find("path");
  return path != entry.end() && path->is_string() ? &*path : nullptr;
}

/// Returns the value of the first of `keys` that is present, as a list.
RecordJson get_field_as_list(const RecordJson& fields, const std::array<const char*, 2>& keys) {
  const auto key = std::ranges::find_if(keys, [&](const char* name) { return fields.contains(name); });
  if (key == keys.end()) return RecordJson::array();
  const RecordJson& value = fields[*key];
  return value.is_array() ? value : RecordJson::array({value});
}

/// Returns the first of `media` with the file name of `entry`, or the end.
std::vector<RecordJson>::const_iterator find_media_by_file_name(const std::vector<RecordJson>& media,
                                                                const RecordJson& entry) {
  const RecordJson* path = find_entry_path(entry);
  return std::ranges::find_if(media, [&](const RecordJson& media_item) {
    return path != nullptr && get_file_name(media_item["path"]) == get_file_name(*path);
  });
}

bool is_empty_entry(const RecordJson& entry) {
  return entry.is_null() || (entry.is_string() && entry.get_ref<const std::string&>().empty());
}

}  // namespace

std::string to_lower_ascii(std::string_view text) {
  std::string lower_text(text);
  std::ranges::transform(lower_text, lower_text.begin(),
                         [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower_text;
}

TarFileKind classify_tar_extension(std::string_view extension) {
  const std::string lower_text = to_lower_ascii(extension);
  std::string_view name = lower_text;  // is shortened to the part before the format
  TarFileKind kind = TarFileKind::kVolume;
  if (!has_nifti_extension("." + lower_text)) {
    size_t dot = name.rfind('.');
    if (dot != std::string_view::npos && is_all_digits(name.substr(dot + 1))) {
      name = name.substr(0, dot);
      dot = name.rfind('.');
    }
    kind = classify_format(name.substr(dot + 1));
    name = name.substr(0, dot == std::string_view::npos ? 0 : dot);
  } else {
    name = name.substr(0, name.rfind("nii"));
  }
  if (kind != TarFileKind::kImage && kind != TarFileKind::kVolume) return kind;
  const auto words = split_words(name);
  const bool is_mask =
      std::ranges::any_of(words, [](std::string_view word) { return is_in_word_list(word, kMaskWords); });
  if (is_mask) return kind == TarFileKind::kImage ? TarFileKind::kMask : TarFileKind::kDerivedMedia;
  const bool is_derived_media =
      std::ranges::any_of(words, [](std::string_view word) { return is_in_word_list(word, kDerivedMediaWords); });
  return is_derived_media ? TarFileKind::kDerivedMedia : kind;
}

bool is_file_listed(const RecordJson& fields, const std::array<const char*, 2>& keys, const std::string& path) {
  const std::vector<RecordJson> single_media{{{"path", path}}};
  return std::ranges::any_of(get_field_as_list(fields, keys), [&](const RecordJson& entry) {
    return find_media_by_file_name(single_media, entry) != single_media.end();
  });
}

void set_media_field(RecordJson& fields, const std::array<const char*, 2>& keys, std::vector<RecordJson> media) {
  if (media.empty()) return;
  const RecordJson listed_media = get_field_as_list(fields, keys);
  std::vector<RecordJson> sorted_media;
  for (const RecordJson& name : listed_media) {
    if (const auto it = find_media_by_file_name(media, name); it != media.end()) sorted_media.push_back(*it);
  }
  const bool is_full_match = sorted_media.size() == media.size() && listed_media.size() == media.size();
  if (!sorted_media.empty() && !is_full_match) {
    throw data_error("its list \"{}\" names {} of the record's {} files in the tar; name each of them once, or none",
                     fields.contains(keys[0]) ? keys[0] : keys[1], sorted_media.size(), media.size());
  }
  for (const char* key : keys) fields.erase(key);
  fields[keys[1]] = is_full_match ? std::move(sorted_media) : std::move(media);
}

std::vector<std::string> merge_masks(RecordJson& fields, const std::vector<RecordJson>& masks) {
  if (masks.empty()) return {};
  RecordJson entries = get_field_as_list(fields, kMaskKeys);
  if (std::ranges::all_of(entries, is_empty_entry)) {
    for (const char* key : kMaskKeys) fields.erase(key);
    fields[kMaskKeys[1]] = masks;
    return {};
  }
  std::vector<std::string> unused_paths;
  for (const RecordJson& mask : masks) {
    const std::vector<RecordJson> single_media{mask};
    bool is_mask_used = false;
    for (RecordJson& entry : entries) {
      if (find_media_by_file_name(single_media, entry) == single_media.end()) continue;
      if (!entry.is_object()) entry = RecordJson::object();
      entry.update(mask);
      is_mask_used = true;
    }
    if (!is_mask_used) unused_paths.push_back(mask["path"].get<std::string>());
  }
  for (const char* key : kMaskKeys) fields.erase(key);
  fields[kMaskKeys[1]] = std::move(entries);
  return unused_paths;
}

}  // namespace vlmtrain::io

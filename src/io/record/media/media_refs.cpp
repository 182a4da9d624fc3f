#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/media/record_media.h"
#include "vlmtrain/base/base64.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {
namespace {

/// Returns the media in base64 text, or in a "data:" URL. Throws data_error if it is not base64.
MediaRef parse_base64_media(std::string_view text) {
  auto bytes = base64_decode(text);
  if (!bytes) {
    throw data_error("the base64 data {} are invalid; correct them, or save the file and give its path",
                     make_excerpt(text));
  }
  MediaRef media_ref;
  media_ref.bytes = std::make_shared<const std::string>(*std::move(bytes));
  return media_ref;
}

MediaRef parse_data_url(std::string_view url) {
  const size_t comma = url.find(',');
  if (comma == std::string_view::npos || !url.substr(0, comma).ends_with(";base64")) {
    throw data_error("the data: URL {} is not in base64 (data:image/png;base64,…); save the file and give its path",
                     make_excerpt(url));
  }
  return parse_base64_media(url.substr(comma + 1));
}

/// Returns true for an image by its extension or its signature.
bool is_image_value(const RecordJson& value) {
  const auto media_ref = parse_media_ref(value);
  if (!media_ref) return false;
  if (media_ref->bytes) return has_image_signature(*media_ref->bytes);
  return has_image_extension(media_ref->path);
}

/// Returns true for text that begins with the signature of a JPEG, PNG or WebP file in base64. A path
/// that begins so is shorter.
bool is_base64_image(std::string_view text) {
  constexpr size_t kMinImageCharacters = 64;  // in base64; smaller than any image
  return text.size() >= kMinImageCharacters &&
         (text.starts_with("/9j/") || text.starts_with("iVBORw0KGgo") || text.starts_with("UklGR"));
}

/// Parses a list of frames as one video. `name` names the list in messages, such as "video 2".
/// Throws data_error if `kind` is not kVideoKind, or if `list` is empty or an entry is not a media
/// reference.
MediaRef parse_frame_list(const RecordJson& list, const std::string& name, const MediaKind& kind) {
  if (kind.name != kVideoKind.name) {
    throw data_error("{} is a list; give each {} its own entry, and list video frames under \"videos\"", name,
                     kind.name);
  }
  if (list.empty()) throw data_error("{} is an empty list of frames", name);
  MediaRef video;
  video.frames.reserve(list.size());
  for (const RecordJson& item : list) {
    auto frame = parse_media_ref(item);
    if (!frame) throw data_error("frame {} of {} is not a path", video.frames.size() + 1, name);
    video.frames.push_back(*std::move(frame));
  }
  return video;
}

MediaRef parse_media_item(const RecordJson& value, size_t number, const MediaKind& kind) {
  if (value.is_array()) return parse_frame_list(value, fmt::format("{} {}", kind.name, number), kind);
  auto media_ref = parse_media_ref(value);
  if (!media_ref) throw data_error("{} {} is not a path", kind.name, number);
  return *std::move(media_ref);
}

// Returns true if a list is the frames of one video, as in "video": ["0.jpg", "1.jpg"]. Two videos
// are written as "videos": [["0.jpg"], ["1.jpg"]].
bool is_frame_list(const RecordJson& value, const MediaKind& kind, bool is_singular_key) {
  return kind.name == kVideoKind.name && is_singular_key && value.is_array() && !value.empty() &&
         std::ranges::all_of(value, is_image_value);
}

void append_media(const RecordJson& value, const MediaKind& kind, bool is_singular_key, std::vector<MediaRef>& media) {
  if (!value.is_array() || is_frame_list(value, kind, is_singular_key)) {
    media.push_back(parse_media_item(value, media.size() + 1, kind));
    return;
  }
  media.reserve(media.size() + value.size());
  for (const RecordJson& item : value) {
    if (!is_blank(item)) media.push_back(parse_media_item(item, media.size() + 1, kind));
  }
}

/// Returns the media under the keys of a kind, alone or in a list. Blank values (is_blank) are
/// skipped. Throws data_error for invalid values, and if the two keys have different media.
std::vector<MediaRef> parse_media_keys(const RecordJson& object, const MediaKind& kind) {
  std::vector<MediaRef> media;
  const RecordJson* first_value = nullptr;
  for (const char* key : kind.keys) {
    const auto it = object.find(key);
    if (it == object.end() || is_blank(*it)) continue;
    std::vector<MediaRef> key_media;
    append_media(*it, kind, key == kind.keys[0], key_media);
    if (first_value != nullptr && !std::ranges::equal(media, key_media, is_same_media)) {
      throw data_error("has both \"{}\" and \"{}\"; keep one", kind.keys[0], kind.keys[1]);
    }
    first_value = &*it;
    media = std::move(key_media);
  }
  return media;
}

/// Returns the images of an object, or its volumes. A number or boolean under "volume" is ignored,
/// because it is a quantity. Throws data_error if there are images and volumes: both have the
/// placeholder <image>, so their order is unknown.
std::vector<MediaRef> parse_images_or_volumes(const RecordJson& object) {
  std::vector<MediaRef> images = parse_media_keys(object, kImageKind);
  const auto volume_value = object.find("volume");
  const bool is_quantity = volume_value != object.end() &&
                           (volume_value->is_number() || volume_value->is_boolean());  // a quantity, not a file
  std::vector<MediaRef> volumes = is_quantity ? std::vector<MediaRef>{} : parse_media_keys(object, kVolumeKind);
  if (volumes.empty()) return images;
  if (!images.empty()) {
    throw data_error("has images and volumes, and the {} placeholders are ambiguous; list them all under \"images\"",
                     kImagePlaceholder);
  }
  for (MediaRef& volume : volumes) volume.is_volume = true;
  return volumes;
}

bool has_base64_media(const RecordJson& object) {
  return std::ranges::any_of(kBase64Keys,
                             [&](const char* key) { return find_non_blank_value(object, key) != nullptr; });
}

/// Returns the value that names the file of a block, the block itself if it has bytes, or nullptr
/// if it has neither. Throws data_error if the block names two different files.
const RecordJson* find_block_file(const RecordJson& block, size_t turn_number, const MediaKind& kind) {
  const RecordJson* file = find_non_blank_value(block, kind.keys[0]);
  if (file != nullptr && block.size() == 2) return file;  // its other key is the type
  for (const char* key : {kind.url_key, "path", "url", "source"}) {
    const RecordJson* candidate = find_non_blank_value(block, key);
    if (candidate == nullptr) continue;
    if (file != nullptr && *file != *candidate) {
      throw data_error("turn {}: {} {} block names two files, one of them under \"{}\"; keep one, or set {}=[{}]",
                       turn_number, kind.indefinite_article(), kind.name, key, keys::data::kIgnoreKeys, key);
    }
    file = candidate;
  }
  if (file == nullptr && has_base64_media(block)) return &block;
  const RecordJson* bytes = find_non_blank_value(block, "bytes");
  return bytes != nullptr && bytes->is_binary() && (file == nullptr || file->is_string()) ? &block : file;
}

double parse_frame_rate(const RecordJson& value, const char* key) {
  if (value.is_number() && value.get<double>() > 0) return value.get<double>();
  throw data_error("its \"{}\" is not a frame rate (frames per second); correct it, or set {}=[{}]", key,
                   keys::data::kIgnoreKeys, key);
}

}  // namespace

bool is_same_media(const MediaRef& a, const MediaRef& b) {
  const bool has_same_bytes = a.bytes == b.bytes || (a.bytes && b.bytes && *a.bytes == *b.bytes);
  return a.path == b.path && has_same_bytes && std::ranges::equal(a.frames, b.frames, is_same_media);
}

std::optional<MediaRef> parse_media_ref(const RecordJson& value) {
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    if (text.empty()) return std::nullopt;
    if (text.starts_with("data:")) return parse_data_url(text);
    return is_base64_image(text) ? parse_base64_media(text) : MediaRef(text);
  }
  if (value.is_binary()) {
    const auto& bytes = value.get_binary();
    MediaRef media_ref;
    media_ref.bytes = is_special_cell(value, SpecialCellKind::kOmittedBytes)
                          ? get_omitted_bytes_marker()
                          : std::make_shared<const std::string>(bytes.begin(), bytes.end());
    return media_ref;
  }
  if (!value.is_object()) return std::nullopt;
  const auto path = value.find("path");
  const auto bytes = value.find("bytes");
  const bool has_path = path != value.end() && path->is_string();
  if (bytes == value.end() || !bytes->is_binary()) {
    for (const char* key : kBase64Keys) {
      const auto base64 = value.find(key);
      if (base64 != value.end() && base64->is_string() && !is_blank(*base64)) {
        return parse_base64_media(base64->get_ref<const std::string&>());
      }
    }
    return has_path ? parse_media_ref(*path) : std::nullopt;
  }
  std::optional<MediaRef> media_ref = parse_media_ref(*bytes);
  if (has_path) media_ref->path = path->get<std::string>();
  return media_ref;
}

ListedMedia parse_listed_media(const RecordJson& object) {
  ListedMedia media{.images = parse_images_or_volumes(object), .videos = parse_media_keys(object, kVideoKind)};
  set_frame_rates(object, media.videos);
  return media;
}

size_t count_listed_media(const RecordJson& record, const MediaKind& kind) {
  for (const char* key : kind.keys) {
    const auto it = record.find(key);
    if (it == record.end() || is_blank(*it)) continue;
    if (!it->is_array() || is_frame_list(*it, kind, key == kind.keys[0])) return 1;
    return static_cast<size_t>(std::ranges::count_if(*it, [](const RecordJson& entry) { return !is_blank(entry); }));
  }
  return 0;
}

BlockMedia parse_block_media(const RecordJson& block, size_t turn_number, const MediaKind& kind) {
  const RecordJson* file = find_block_file(block, turn_number, kind);
  BlockMedia result{.media = {}, .file = file};
  if (file == nullptr) return result;
  const auto name = [&] {
    return fmt::format("turn {}: {} {} block", turn_number, kind.indefinite_article(), kind.name);
  };
  if (file->is_object() && find_non_blank_value(*file, "bytes") == nullptr && !has_base64_media(*file)) {
    const RecordJson* url = find_non_blank_value(*file, "url");
    file = url != nullptr ? url : find_non_blank_value(*file, "path");
    if (file == nullptr) throw data_error("{} has an object without \"url\"", name());
  }
  result.media = file->is_array() ? parse_frame_list(*file, name(), kind) : parse_media_ref(*file);
  if (!result.media) throw data_error("{}'s {} is not a path", name(), kind.name);
  if (&kind == &kVolumeKind) result.media->is_volume = true;
  return result;
}

bool uses_frame_rate(const MediaRef& video) {
  return !video.frames.empty() || (!video.bytes && !has_video_extension(video.path));
}

void set_frame_rates(const RecordJson& object, std::span<MediaRef> media) {
  if (std::ranges::none_of(media, uses_frame_rate)) return;
  for (const char* key : {"fps", "sample_fps", "video_fps"}) {
    const RecordJson* value = find_non_blank_value(object, key);
    if (value == nullptr) continue;
    if (value->is_array() && value->size() != media.size()) {
      throw data_error("its \"{}\" has {} entries for {} videos; give one per video, or one number for all", key,
                       value->size(), media.size());
    }
    for (size_t i = 0; i < media.size(); ++i) {
      if (!uses_frame_rate(media[i])) continue;
      const double fps = parse_frame_rate(value->is_array() ? (*value)[i] : *value, key);
      if (media[i].fps != 0 && media[i].fps != fps) {
        throw data_error("has several frame rates for the same frames, one of them under \"{}\"; keep one", key);
      }
      media[i].fps = fps;
    }
  }
}

}  // namespace vlmtrain::io

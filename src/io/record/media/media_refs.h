#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// A kind of media with its keys and placeholder.
struct MediaKind {
  std::string_view name;            ///< singular noun for messages
  std::string_view placeholder;     ///< placeholder in the text of turns
  std::array<const char*, 2> keys;  ///< keys of a record or a turn, singular and plural
  const char* url_key = "";         ///< key of a content block with a path or URL

  /// Returns the indefinite article of `name`, for messages.
  const char* indefinite_article() const { return name == "image" ? "an" : "a"; }
};
inline constexpr MediaKind kImageKind{"image", kImagePlaceholder, {"image", "images"}, "image_url"};
inline constexpr MediaKind kVideoKind{"video", kVideoPlaceholder, {"video", "videos"}, "video_url"};
inline constexpr MediaKind kVolumeKind{"volume", kImagePlaceholder, {"volume", "volumes"}, "volume_url"};

/// Keys of a content block or of an object that represents a medium, with its content in base64.
inline constexpr std::array<const char*, 5> kBase64Keys{"base64", "data", "b64", "image_base64", "image_b64"};

/// Parses a path, a "data:" URL, an image in base64, bytes (a binary JSON value), {"bytes", "path"}
/// as in Hugging Face datasets, or an object with one of kBase64Keys. Returns nothing for other
/// values and for an empty path. Omitted bytes (row_file.h) become get_omitted_bytes_marker().
/// Throws data_error for invalid base64.
std::optional<MediaRef> parse_media_ref(const RecordJson& value);

/// Media under the keys of a record or a turn, outside of content blocks.
struct ListedMedia {
  std::vector<MediaRef> images;  ///< or volumes
  std::vector<MediaRef> videos;
};

/// Returns the media that a record or a turn has under "image", "images", "volume", "volumes",
/// "video" and "videos", alone or in a list, with the frame rates of the videos. Blank values
/// (is_blank) are skipped. Throws data_error for invalid values, if two keys of a kind have different
/// media, and if there are images and volumes.
ListedMedia parse_listed_media(const RecordJson& object);

/// Returns the number of media of a kind that parse_listed_media() would return.
size_t count_listed_media(const RecordJson& record, const MediaKind& kind);

/// The media of a content block.
struct BlockMedia {
  std::optional<MediaRef> media;  ///< nothing if the block stands for the next of the record's listed media
  const RecordJson* file;         ///< value that names the file; the block itself if it has bytes
};

/// Parses the media of a content block, except for a frame rate. Throws data_error for values that
/// are not media, and if the block names two different files.
BlockMedia parse_block_media(const RecordJson& block, size_t turn_number, const MediaKind& kind);

/// Returns true if a frame rate in the record applies to a video: a list of frames, or a path
/// without the extension of a video file, which may be a folder of frames. Video files and bytes
/// contain their frame rate.
bool uses_frame_rate(const MediaRef& video);

/// Sets MediaRef::fps of each video in `media` for which uses_frame_rate(). The rate is under
/// "fps", "sample_fps" or "video_fps" of `object`, a record, turn or block: one number, or a list
/// with one per video. Throws data_error for invalid or contradictory values.
void set_frame_rates(const RecordJson& object, std::span<MediaRef> media);

/// Returns true if two references name the same file or have equal bytes.
bool is_same_media(const MediaRef& a, const MediaRef& b);

}  // namespace vlmtrain::io

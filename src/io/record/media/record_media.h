#pragma once

#include <array>
#include <cstddef>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
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

/// The base folder of relative media paths.
struct ImageRoot {
  std::filesystem::path folder;
  bool rejects_outside_paths = false;  ///< true if paths outside of the folder, also through links, are refused
};

/// Returns the reference with relative paths resolved against `root`. A reference with bytes and no
/// path gets a name for messages. `number` is the number of the media in messages, from 1. Throws
/// data_error for URLs, and for paths outside of `root` if it rejects them
/// (ImageRoot::rejects_outside_paths).
MediaRef resolve_media_path(const MediaRef& media_ref, size_t number, const ImageRoot& root, const MediaKind& kind);

/// A placeholder that the data's text contains, in contrast to one that stands for a content block.
struct TextPlaceholder {
  size_t turn_index;  ///< of the turn with the placeholder
  size_t begin;       ///< byte offset in the turn's text
};

/// The slots of a conversation's images or videos, collected turn by turn. A slot corresponds to a
/// placeholder in the text. Its media are inline, that is from a content block or a turn, or the
/// next of the listed media, which the record has outside of its turns.
class MediaSlots {
 public:
  explicit MediaSlots(const MediaKind& kind) : media_kind_(&kind) {}

  /// Adds the slot of a content block. Without `media`, the slot needs one of the listed media.
  void add(std::optional<MediaRef> media) { slots_.push_back({.media = std::move(media), .placeholder = {}}); }
  /// Sets the kind that messages name: volumes share the slots of images.
  void set_media_kind(const MediaKind& kind) { media_kind_ = &kind; }
  /// Adds slots for the placeholders in `text`, which begins at byte `begin` of the turn with index
  /// `turn`.
  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  /// Assigns `media`, which a turn names, to the unassigned slots of that turn: those from index
  /// `first` on. If it has none, inserts slots at `first` and returns their number; the caller then
  /// inserts as many placeholders before the turn's text. Otherwise returns 0. Throws data_error if
  /// the numbers of slots and media differ.
  size_t assign_turn_media(std::vector<MediaRef> media, size_t first, size_t turn);
  /// Adjusts the offsets of placeholders after `bytes` bytes were inserted at the start of a turn's
  /// text.
  void shift_placeholders(size_t turn, size_t bytes);

  /// Decides which placeholders in texts are literal (Turn::literal_placeholder_offsets). Does
  /// nothing if the slots match the listed media. Otherwise, placeholders are literal if the inline
  /// media are complete without them, or if there are no media and all are inside a sentence.
  /// Clears `listed_media` if it only repeats inline media. Returns true if all placeholders are
  /// literal.
  bool try_mark_literal_placeholders(std::vector<MediaRef>& listed_media, std::vector<Turn>& turns);

  /// Returns the number of slots that need listed media.
  size_t num_unassigned_slots() const;
  /// Returns true if at least one slot has inline media.
  bool has_inline_media() const;
  size_t size() const { return slots_.size(); }
  bool empty() const { return slots_.empty(); }

  /// Returns the media in the order of their placeholders, resolved against `root`. If there are no
  /// slots, appends a placeholder for each of the listed media to `leading_placeholders`. Throws
  /// data_error if the numbers of unassigned slots and listed media differ.
  std::vector<MediaRef> collect_media(const std::vector<MediaRef>& listed_media, const ImageRoot& root,
                                      std::string& leading_placeholders) const;

 private:
  struct Slot {
    std::optional<MediaRef> media;               ///< empty until assigned
    std::optional<TextPlaceholder> placeholder;  ///< empty for slots of content blocks and turns
  };
  static size_t count_unassigned_slots(const std::vector<Slot>& slots);
  /// Returns true if some slots have media and those equal the listed media at the same positions.
  static bool repeats_listed_media(const std::vector<Slot>& slots, const std::vector<MediaRef>& listed_media);
  void assign_listed_media(std::vector<MediaRef>& listed_media);

  const MediaKind* media_kind_;
  std::vector<Slot> slots_;
};

/// The media of a conversation, collected turn by turn.
struct ConversationMedia {
  MediaSlots images{kImageKind};
  MediaSlots videos{kVideoKind};

  /// Adds slots for the placeholders of images and videos in `text`, which begins at byte `begin`
  /// of the turn with index `turn`.
  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  /// Adjusts the offsets of placeholders after `bytes` bytes were inserted at the start of a turn's
  /// text.
  void shift_placeholders(size_t turn, size_t bytes);
};

/// Matches the media of a record with the placeholders of its turns, and sets Record::images and
/// Record::videos. Inserts placeholders for listed media before the first turn of the user if there
/// are none. Throws data_error if media and placeholders do not match, and for media in answers.
/// REQUIRES: `record` has its turns, one of them of the user.
void set_record_media(ConversationMedia& media, ListedMedia& listed_media, const ImageRoot& root, Record& record);

/// Sets Record::masks from "mask" or "masks" of a record, after its images. Each is
/// - a path or bytes, as for an image;
/// - an object with "path" or "bytes", and optional "value", "structure" and "image" (MaskSource);
/// - a COCO run-length encoding {"size": [height, width], "counts"} with optional "structure" and
///   "image";
/// - an object with a run-length encoding under "rle" or "segmentation".
/// "label" is an alias of "structure". Relative paths are resolved against `root`. Other values, and
/// an "image" index beyond the images, become Record::mask_problem.
void set_masks(const RecordJson& record_json, const ImageRoot& root, Record& record);

/// Sets the modality of each volume of `record` and Record::subject_ids from the JSON object
/// `value`. "modality" is one text for all volumes or a list with one per volume; "subject_id" is
/// one text or a list. Images with the extension of a NIfTI file become volumes. Does nothing for a
/// record without volumes. Throws data_error for other values.
void set_volume_metadata(const RecordJson& value, Record& record);

}  // namespace vlmtrain::io

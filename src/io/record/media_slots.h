#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// A kind of media with its keys and placeholder.
struct MediaKind {
  std::string_view name;            ///< for messages
  std::string_view placeholder;     ///< in the text of turns
  std::array<const char*, 2> keys;  ///< of a record or a turn, for one and for several
  const char* url_key = "";         ///< of a content block
};
inline constexpr MediaKind kImages{"image", kImagePlaceholder, {"image", "images"}, "image_url"};
inline constexpr MediaKind kVideos{"video", kVideoPlaceholder, {"video", "videos"}, "video_url"};
inline constexpr MediaKind kVolumes{"volume", kImagePlaceholder, {"volume", "volumes"}, "volume_url"};

/// The folder in which relative paths start.
struct ImageRoot {
  std::filesystem::path folder;
  bool is_enforced = false;  ///< refuses paths outside of the folder, also through links
};

/// Parses a path, bytes, or {"bytes", "path"} as in Hugging Face datasets. Returns nothing for
/// other values.
std::optional<MediaRef> parse_media_ref(const nlohmann::json& value);

/// Parses a list of frames as one video. `name` is used in messages. Throws data_error unless
/// `kind` is a video and each frame is an image reference.
MediaRef parse_frame_list(const nlohmann::json& list, const std::string& name, const MediaKind& kind);

/// Returns the media of a kind that a record or a turn lists under the kind's keys. Blank values
/// (null, "", [null]) are skipped. Throws data_error for invalid values, and if both keys have
/// different media.
std::vector<MediaRef> parse_listed_media(const nlohmann::json& record, const MediaKind& kind);

/// Returns the number of media that parse_listed_media() would return.
size_t count_listed_media(const nlohmann::json& record, const MediaKind& kind);

/// Returns the reference with its path relative to `root`. `number` counts from 1 and is used in
/// messages. Throws data_error for URLs and, if `root` is enforced, for paths outside of it.
MediaRef resolve_media_path(const MediaRef& media_ref, size_t number, const ImageRoot& root, const MediaKind& kind);

/// Returns the number of occurrences of `placeholder` in `text`.
size_t count_placeholders(std::string_view text, std::string_view placeholder);

/// A placeholder that is part of a text of the data, not of a content block.
struct TextPlaceholder {
  size_t turn;   ///< index of the turn
  size_t begin;  ///< byte offset in its text
};

/// The slots of a conversation's images or videos, collected turn by turn. Each slot is a
/// placeholder. It has inline media, from a content block or a turn, or is assigned one of the
/// record's listed media in order.
class MediaSlots {
 public:
  explicit MediaSlots(const MediaKind& kind) : kind_(&kind) {}

  /// Adds a slot of a content block. Without `media`, the slot awaits a listed one.
  void add(std::optional<MediaRef> media) { slots_.push_back({.media = std::move(media), .placeholder = {}}); }
  /// Sets the kind that messages name.
  void set_kind(const MediaKind& kind) { kind_ = &kind; }
  /// Adds slots for the placeholders in `text`, which begins at byte `begin` of the turn with index
  /// `turn`.
  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  /// Assigns media that a turn names to the unassigned slots from `first` on. If there are no such
  /// slots, adds slots and returns the number of placeholders to insert before the turn's text;
  /// otherwise returns 0. Throws data_error if the numbers differ.
  size_t assign_turn_media(std::vector<MediaRef> media, size_t first, size_t turn);
  /// Adjusts offsets after `bytes` were inserted at the start of a turn's text.
  void shift_placeholders(size_t turn, size_t bytes);

  /// Marks placeholders in texts as literal (Turn::literal_placeholders) if the media come from
  /// content blocks or turns, or if there are no media and the placeholder is inside a sentence.
  /// Clears `listed_media` if it only repeats inline media. Returns true if all placeholders are
  /// literal.
  bool resolve_placeholders(std::vector<MediaRef>& listed_media, std::vector<Turn>& turns);

  /// Returns the number of slots that need listed media.
  size_t num_unassigned() const;
  /// Returns true if at least one slot has inline media.
  bool has_inline_media() const;
  size_t size() const { return slots_.size(); }
  bool empty() const { return slots_.empty(); }

  /// Returns the media in the order of their placeholders, with paths relative to `root`. If there
  /// are no slots, appends placeholders for all listed media to `leading_placeholders`. Throws
  /// data_error if the numbers of slots and media differ.
  std::vector<MediaRef> collect(const std::vector<MediaRef>& listed_media, const ImageRoot& root,
                                std::string& leading_placeholders) const;

 private:
  struct Slot {
    std::optional<MediaRef> media;
    std::optional<TextPlaceholder> placeholder;  ///< empty for content blocks and turns
  };
  static size_t count_unassigned(const std::vector<Slot>& slots);
  static bool repeats_listed(const std::vector<Slot>& slots, const std::vector<MediaRef>& listed_media);
  void assign_listed(std::vector<MediaRef>& listed_media);

  const MediaKind* kind_;
  std::vector<Slot> slots_;
};

}  // namespace vlmtrain::io

#pragma once

#include <nlohmann/json.hpp>

#include <array>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "vlmtrain/io/conversation.h"
#include "vlmtrain/io/media_ref.h"

namespace vlmtrain::io {

/// What stands at marks in the text.
struct MediaKind {
  std::string_view name;            ///< in messages
  std::string_view placeholder;     ///< in turns
  std::array<const char*, 2> keys;  ///< of a record, for one or several
  const char* url_key = "";         ///< of a content block
};
inline constexpr MediaKind kImages{"image", kImagePlaceholder, {"image", "images"}, "image_url"};
inline constexpr MediaKind kVideos{"video", kVideoPlaceholder, {"video", "videos"}, "video_url"};
inline constexpr MediaKind kVolumes{"volume", kImagePlaceholder, {"volume", "volumes"}, "volume_url"};

/// The folder that relative paths start from.
struct ImageRoot {
  std::filesystem::path folder;
  bool is_enforced = false;  ///< a path that leads out of it, itself or through a link, is refused
};

/// A path, bytes, or {"bytes", "path"} as Hugging Face's data sets have it; nothing where a value is none of these.
std::optional<MediaRef> parse_media_ref(const nlohmann::json& value);

/// A list of frames, each as parse_media_ref() takes it, as one video; `name` is what messages call it. Only of videos.
MediaRef parse_frame_list(const nlohmann::json& list, const std::string& name, const MediaKind& kind);

/// What a record or a turn lists of a kind: one or several, from whichever of the kind's keys has any; values without
/// content (null, "", [null]) are none. Problems are data_errors, here and below.
std::vector<MediaRef> parse_listed_media(const nlohmann::json& record, const MediaKind& kind);

/// How many parse_listed_media() returns, without reading them.
size_t count_listed_media(const nlohmann::json& record, const MediaKind& kind);

/// Number `number` of a kind where it lies, a relative path of it from `root` on.
MediaRef resolve_media_path(const MediaRef& media_ref, size_t number, const ImageRoot& root, const MediaKind& kind);

/// How often `placeholder` stands in `text`.
size_t count_placeholders(std::string_view text, std::string_view placeholder);

/// A mark that stands in a text of the data, where a content block has none.
struct TextPlaceholder {
  size_t turn;   ///< index of the turn
  size_t begin;  ///< byte offset in its text
};

/// The places of a conversation's images or videos, collected turn by turn: each is a mark, with one of its own (of a
/// content block or a turn that names it) or waiting for the next of the listed ones.
class MediaSlots {
 public:
  explicit MediaSlots(const MediaKind& kind) : kind_(&kind) {}

  void add(std::optional<MediaRef> media) { slots_.push_back({.media = std::move(media), .placeholder = {}}); }
  /// What messages call them from here on.
  void set_kind(const MediaKind& kind) { kind_ = &kind; }
  /// Adds the marks in `text`, which begins at byte `begin` of the turn `turn`.
  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  /// Gives the waiting places from number `first` on the media that their turn names. Without any place from `first`
  /// on, the media get places of their own there and the result is how many marks to write before the turn's text,
  /// else 0. data_error where their numbers differ.
  size_t assign_turn_media(std::vector<MediaRef> media, size_t first, size_t turn);
  /// The text of `turn` got `bytes` more at its front.
  void shift_placeholders(size_t turn, size_t bytes);

  /// Makes marks in texts words of the text (Turn::literal_placeholders) where media are given otherwise: by content
  /// blocks or turns, or not at all and the mark stands between words of one line. Empties `listed_media` where it only
  /// repeats what blocks and turns name. Returns true where words are left and no media of the kind.
  bool resolve_placeholders(std::vector<MediaRef>& listed_media, std::vector<Turn>& turns);

  /// The marks that wait for a listed one.
  size_t num_unassigned() const;
  bool has_inline_media() const;
  size_t size() const { return slots_.size(); }
  bool empty() const { return slots_.empty(); }

  /// The media in the order of their marks, relative paths of them from `root` on. Where no turn has a mark, marks for
  /// all listed ones go to `leading_placeholders`.
  std::vector<MediaRef> collect(const std::vector<MediaRef>& listed_media, const ImageRoot& root,
                                std::string& leading_placeholders) const;

 private:
  struct Slot {
    std::optional<MediaRef> media;
    std::optional<TextPlaceholder> placeholder;  ///< nothing: of a content block or a turn
  };
  static size_t count_unassigned(const std::vector<Slot>& slots);
  static bool repeats_listed(const std::vector<Slot>& slots, const std::vector<MediaRef>& listed_media);
  void assign_listed(std::vector<MediaRef>& listed_media);

  const MediaKind* kind_;
  std::vector<Slot> slots_;
};

}  // namespace vlmtrain::io

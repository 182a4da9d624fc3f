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
#include "vlmtrain/io/medium.h"

namespace vlmtrain::io {

/// What stands at marks in the text.
struct MediaKind {
  std::string_view word;            ///< in messages
  std::string_view mark;            ///< in turns
  std::array<const char*, 2> keys;  ///< of a record, for one or several
  const char* url_key = "";         ///< of a content block
};
inline constexpr MediaKind kImages{"image", kImageMark, {"image", "images"}, "image_url"};
inline constexpr MediaKind kVideos{"video", kVideoMark, {"video", "videos"}, "video_url"};
inline constexpr MediaKind kVolumes{"volume", kImageMark, {"volume", "volumes"}, "volume_url"};

/// The folder that relative paths start from.
struct MediaRoot {
  std::filesystem::path folder;
  bool is_left_never = false;  ///< a path that leads out of it, itself or through a link, is refused
};

/// A path, bytes, or {"bytes", "path"} as Hugging Face's data sets have it; nothing where a value is none of these.
std::optional<Medium> medium_of(const nlohmann::json& value);

/// A list of frames, each as medium_of() takes it, as one video; `name` is what messages call it. Only of videos.
Medium medium_of_frames(const nlohmann::json& list, const std::string& name, const MediaKind& kind);

/// What a record or a turn lists of a kind: one or several, from whichever of the kind's keys has any; values without
/// content (null, "", [null]) are none. Problems are data_errors, here and below.
std::vector<Medium> listed_media(const nlohmann::json& record, const MediaKind& kind);

/// How many listed_media() returns, without reading them.
size_t count_listed_media(const nlohmann::json& record, const MediaKind& kind);

/// Number `number` of a kind where it lies, a relative path of it from `root` on.
Medium placed(const Medium& medium, size_t number, const MediaRoot& root, const MediaKind& kind);

/// How often `mark` stands in `text`.
size_t count_marks(std::string_view text, std::string_view mark);

/// A mark that stands in a text of the data, where a content block has none.
struct TextMark {
  size_t turn;   ///< index of the turn
  size_t begin;  ///< byte offset in its text
};

/// The places of a conversation's images or videos, collected turn by turn: each is a mark, with one of its own (of a
/// content block or a turn that names it) or waiting for the next of the listed ones.
class MediaPlaces {
 public:
  explicit MediaPlaces(const MediaKind& kind) : kind_(&kind) {}

  void add(std::optional<Medium> own) { places_.push_back({.own = std::move(own), .mark = {}}); }
  /// What messages call them from here on.
  void call(const MediaKind& kind) { kind_ = &kind; }
  /// Adds the marks in `text`, which begins at byte `begin` of the turn `turn`.
  void add_marks_in(std::string_view text, size_t turn, size_t begin);
  /// Gives the waiting places from number `first` on the media that their turn names. Without any place from `first`
  /// on, the media get places of their own there and the result is how many marks to write before the turn's text,
  /// else 0. data_error where their numbers differ.
  size_t give(std::vector<Medium> own, size_t first, size_t turn);
  /// The text of `turn` got `bytes` more at its front.
  void shift_marks(size_t turn, size_t bytes);

  /// Makes marks in texts words of the text (Turn::literal_marks) where media are given otherwise: by content blocks
  /// or turns, or not at all and the mark stands between words of one line. Empties `listed` where it only repeats what
  /// blocks and turns name. Returns true where words are left and no media of the kind.
  bool settle(std::vector<Medium>& listed, std::vector<Turn>& turns);

  /// The marks that wait for a listed one.
  size_t waiting() const;
  bool has_own() const;
  size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }

  /// The media in the order of their marks, relative paths of them from `root` on. Where no turn has a mark, marks for
  /// all listed ones go to `opening`.
  std::vector<Medium> fill(const std::vector<Medium>& listed, const MediaRoot& root, std::string& opening) const;

 private:
  struct Place {
    std::optional<Medium> own;
    std::optional<TextMark> mark;  ///< nothing: of a content block or a turn
  };
  static size_t count_waiting(const std::vector<Place>& places);
  static bool repeats(const std::vector<Place>& places, const std::vector<Medium>& listed);
  void give_listed(std::vector<Medium>& listed);

  const MediaKind* kind_;
  std::vector<Place> places_;
};

}  // namespace vlmtrain::io

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
};
inline constexpr MediaKind kImages{"image", kImageMark, {"image", "images"}};
inline constexpr MediaKind kVideos{"video", kVideoMark, {"video", "videos"}};
inline constexpr MediaKind kVolumes{"volume", kImageMark, {"volume", "volumes"}};

/// The folder that relative paths start from.
struct MediaRoot {
  std::filesystem::path folder;
  bool is_left_never = false;  ///< a path that leads out of it, itself or through a link, is refused
};

/// A path, bytes, or {"bytes", "path"} as Hugging Face's data sets have it; nothing where a value is none of these.
std::optional<Medium> medium_of(const nlohmann::json& value);

/// A list of frames, each as medium_of() takes it, as one video; `name` is what messages call it. Only of videos.
Medium medium_of_frames(const nlohmann::json& list, const std::string& name, const MediaKind& kind);

/// What a record lists of a kind beside its turns: one or several. Problems are data_errors, here and below.
std::vector<Medium> listed_media(const nlohmann::json& record, const MediaKind& kind);

/// Number `number` of a kind where it lies, a relative path of it from `root` on.
Medium placed(const Medium& medium, size_t number, const MediaRoot& root, const MediaKind& kind);

/// How often `mark` stands in `text`.
size_t count_marks(std::string_view text, std::string_view mark);

/// The places of a conversation's images or videos, collected turn by turn: each is a mark, with one of its own (a
/// content block that names it) or waiting for the next of the listed ones.
class MediaPlaces {
 public:
  explicit MediaPlaces(const MediaKind& kind) : kind_(&kind) {}

  void add(std::optional<Medium> own) { places_.push_back(std::move(own)); }
  /// What messages call them from here on.
  void call(const MediaKind& kind) { kind_ = &kind; }
  void add_marks_in(std::string_view text);

  /// The marks that wait for a listed one.
  size_t waiting() const;
  size_t size() const { return places_.size(); }
  bool empty() const { return places_.empty(); }

  /// The media in the order of their marks, relative paths of them from `root` on. Where no turn has a mark, marks for
  /// all listed ones go to `opening`.
  std::vector<Medium> fill(const std::vector<Medium>& listed, const MediaRoot& root, std::string& opening) const;

 private:
  const MediaKind* kind_;
  std::vector<std::optional<Medium>> places_;
};

}  // namespace vlmtrain::io

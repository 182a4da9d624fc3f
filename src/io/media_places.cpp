#include "io/media_places.h"

#include <algorithm>

#include "io/media_likeness.h"
#include "io/white_space.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_kind.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/medium_bytes.h"
#include "vlmtrain/io/row_file.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

/// By its name, or by its first bytes: JPEG, PNG or WebP.
bool is_picture(const json& value) {
  const auto medium = medium_of(value);
  if (!medium) return false;
  if (medium->bytes) {
    const std::string_view begin = std::string_view(*medium->bytes).substr(0, 12);
    return begin.starts_with("\xff\xd8\xff") || begin.starts_with("\x89PNG") ||
           (begin.starts_with("RIFF") && begin.ends_with("WEBP"));
  }
  return is_named_like_a_picture(medium->path);
}

Medium listed_medium(const json& value, size_t number, const MediaKind& kind) {
  if (value.is_array()) return medium_of_frames(value, fmt::format("{} {}", kind.word, number), kind);
  auto medium = medium_of(value);
  if (!medium) throw data_error("{} {} is not a path", kind.word, number);
  return *std::move(medium);
}

// "video": ["0.jpg", "1.jpg"] is one video; two are "videos": [["0.jpg"], ["1.jpg"]].
bool are_frames(const json& value, const MediaKind& kind, bool is_one) {
  return kind.word == kVideos.word && is_one && value.is_array() && !value.empty() &&
         std::ranges::all_of(value, is_picture);
}

void add_media(const json& value, const MediaKind& kind, bool is_one, std::vector<Medium>& media) {
  if (!value.is_array() || are_frames(value, kind, is_one)) {
    media.push_back(listed_medium(value, media.size() + 1, kind));
    return;
  }
  media.reserve(media.size() + value.size());
  for (const json& item : value) {
    if (!is_blank(item)) media.push_back(listed_medium(item, media.size() + 1, kind));
  }
}

bool is_same(const Medium& one, const Medium& other) {
  const bool has_same_bytes = one.bytes == other.bytes || (one.bytes && other.bytes && *one.bytes == *other.bytes);
  return one.path == other.path && has_same_bytes && std::ranges::equal(one.frames, other.frames, is_same);
}

/// Whether other words precede and follow a mark on its line.
bool stands_between_words(std::string_view text, size_t begin) {
  const size_t line = text.rfind('\n', begin) + 1;  // npos + 1 is 0
  const std::string_view before = text.substr(line, begin - line);
  const std::string_view after = text.substr(begin + kImageMark.size());
  const std::string_view rest = after.substr(0, after.find('\n'));
  return before.find_first_not_of(kWhiteSpace) != std::string_view::npos &&
         rest.find_first_not_of(kWhiteSpace) != std::string_view::npos;
}

std::string local_path(std::string file, size_t number, const MediaKind& kind) {
  // The system would open what stands before it.
  if (file.find('\0') != std::string::npos) throw data_error("{} {} has a NUL in its path", kind.word, number);
  constexpr std::string_view kFileScheme = "file://";
  if (file.starts_with(kFileScheme)) {
    return file.substr(kFileScheme.size());
  }
  for (const std::string_view scheme : {"http://", "https://", "data:"}) {
    if (file.starts_with(scheme)) {
      throw data_error("{} {} is a {}... address, only files are read: save the {} and give its path", kind.word,
                       number, scheme, kind.word);
    }
  }
  return file;
}

bool leads_out_of(const std::filesystem::path& root, const std::filesystem::path& file) {
  std::error_code error;
  auto folder = std::filesystem::weakly_canonical(root.empty() ? "." : root, error);
  if (!folder.has_filename()) folder = folder.parent_path();
  const auto place = std::filesystem::weakly_canonical(file, error);
  return error || std::ranges::mismatch(folder, place).in1 != folder.end();
}

}  // namespace

Medium placed(const Medium& medium, size_t number, const MediaRoot& root, const MediaKind& kind) {
  if (!medium.frames.empty()) {
    Medium video;
    video.frames.reserve(medium.frames.size());
    for (const Medium& frame : medium.frames) {
      video.frames.push_back(placed(frame, number, root, kind));
      if (frame.bytes && frame.path.empty()) video.frames.back().path += fmt::format(", frame {}", video.frames.size());
    }
    video.path = video.frames.front().path;
    video.fps = medium.fps;
    return video;
  }
  if (medium.bytes) {
    Medium named = medium;
    if (named.path.empty()) named.path = fmt::format("{} {}", kind.word, number);
    return named;
  }
  Medium file = medium;
  file.path = (root.folder / local_path(medium.path, number, kind)).string();
  if (root.is_left_never && leads_out_of(root.folder, file.path)) {
    throw data_error("{} {} lies outside of the folder of images, {}, which data.outside_image_root=refuse forbids: {}",
                     kind.word, number, root.folder.string(), excerpt(file.path));
  }
  return file;
}

std::optional<Medium> medium_of(const json& value) {
  if (value.is_string()) {
    const auto& path = value.get_ref<const std::string&>();
    return path.empty() ? std::nullopt : std::optional<Medium>(path);
  }
  if (value.is_binary()) {
    const auto& bytes = value.get_binary();
    Medium medium;
    medium.bytes = is_row_value(value, RowValue::kDroppedBytes)
                       ? dropped_bytes()
                       : std::make_shared<const std::string>(bytes.begin(), bytes.end());
    return medium;
  }
  if (!value.is_object()) return std::nullopt;
  const auto path = value.find("path");
  const auto bytes = value.find("bytes");
  const bool is_named = path != value.end() && path->is_string();
  if (bytes == value.end() || !bytes->is_binary()) return is_named ? medium_of(*path) : std::nullopt;
  std::optional<Medium> medium = medium_of(*bytes);
  if (is_named) medium->path = path->get<std::string>();
  return medium;
}

Medium medium_of_frames(const json& list, const std::string& name, const MediaKind& kind) {
  if (kind.word != kVideos.word) {
    throw data_error("{} is a list: give each {} an entry of its own, and frames of a video under \"videos\"", name,
                     kind.word);
  }
  if (list.empty()) throw data_error("{} is a list of no frames", name);
  Medium video;
  video.frames.reserve(list.size());
  for (const json& item : list) {
    auto frame = medium_of(item);
    if (!frame) throw data_error("frame {} of {} is not a path", video.frames.size() + 1, name);
    video.frames.push_back(*std::move(frame));
  }
  return video;
}

std::vector<Medium> listed_media(const json& record, const MediaKind& kind) {
  std::vector<Medium> media;
  const json* used = nullptr;
  for (const char* key : kind.keys) {
    const auto found = record.find(key);
    if (found == record.end() || is_blank(*found)) continue;
    std::vector<Medium> here;
    add_media(*found, kind, key == kind.keys[0], here);
    if (used != nullptr && !std::ranges::equal(media, here, is_same)) {
      throw data_error("has both \"{}\" and \"{}\": keep one", kind.keys[0], kind.keys[1]);
    }
    used = &*found;
    media = std::move(here);
  }
  return media;
}

size_t count_listed_media(const json& record, const MediaKind& kind) {
  for (const char* key : kind.keys) {
    const auto found = record.find(key);
    if (found == record.end() || is_blank(*found)) continue;
    if (!found->is_array() || are_frames(*found, kind, key == kind.keys[0])) return 1;
    return static_cast<size_t>(std::ranges::count_if(*found, [](const json& entry) { return !is_blank(entry); }));
  }
  return 0;
}

size_t count_marks(std::string_view text, std::string_view mark) {
  size_t marks = 0;
  for (size_t at = text.find(mark); at != std::string_view::npos; at = text.find(mark, at + mark.size())) ++marks;
  return marks;
}

void MediaPlaces::add_marks_in(std::string_view text, size_t turn, size_t begin) {
  for (size_t at = text.find(kind_->mark); at != std::string_view::npos;
       at = text.find(kind_->mark, at + kind_->mark.size())) {
    places_.push_back({.own = {}, .mark = TextMark{.turn = turn, .begin = begin + at}});
  }
}

size_t MediaPlaces::give(std::vector<Medium> own, size_t first, size_t turn) {
  if (own.empty()) return 0;
  std::vector<Place*> waiting;
  for (size_t i = first; i < places_.size(); ++i) {
    if (!places_[i].own) waiting.push_back(&places_[i]);
  }
  if (waiting.empty()) {
    std::vector<Place> added;
    for (Medium& medium : own) added.push_back({.own = std::move(medium), .mark = {}});
    places_.insert(places_.begin() + static_cast<std::ptrdiff_t>(first), added.begin(), added.end());
    return own.size();
  }
  if (waiting.size() != own.size()) {
    throw data_error("turn {} has {} {} marks for {} {}s of its own: each {} needs one mark", turn + 1, waiting.size(),
                     kind_->mark, own.size(), kind_->word, kind_->word);
  }
  for (size_t i = 0; i < own.size(); ++i) *waiting[i] = {.own = std::move(own[i]), .mark = {}};
  return 0;
}

void MediaPlaces::shift_marks(size_t turn, size_t bytes) {
  for (Place& place : places_) {
    if (place.mark && place.mark->turn == turn) place.mark->begin += bytes;
  }
}

size_t MediaPlaces::count_waiting(const std::vector<Place>& places) {
  return static_cast<size_t>(std::ranges::count_if(places, [](const Place& place) { return !place.own; }));
}

bool MediaPlaces::repeats(const std::vector<Place>& places, const std::vector<Medium>& listed) {
  return std::ranges::any_of(places, [](const Place& place) { return place.own.has_value(); }) &&
         std::ranges::equal(places, listed, [](const Place& place, const Medium& medium) {
           return !place.own || is_same(*place.own, medium);
         });
}

void MediaPlaces::give_listed(std::vector<Medium>& listed) {
  for (size_t i = 0; i < places_.size(); ++i) places_[i].own = std::move(listed[i]);
  listed.clear();
}

bool MediaPlaces::settle(std::vector<Medium>& listed, std::vector<Turn>& turns) {
  if (waiting() == listed.size()) return false;
  if (repeats(places_, listed)) {
    give_listed(listed);
    return false;
  }
  std::vector<Place> given, words;
  for (const Place& place : places_) (place.mark ? words : given).push_back(place);
  const auto is_between_words = [&](const Place& place) {
    return stands_between_words(turns[place.mark->turn].text, place.mark->begin);
  };
  const bool are_words = given.empty() ? listed.empty() && std::ranges::all_of(words, is_between_words)
                                       : count_waiting(given) == listed.size() || repeats(given, listed);
  if (!are_words || words.empty()) return false;
  for (const Place& word : words) turns[word.mark->turn].literal_marks.push_back(word.mark->begin);
  for (Turn& turn : turns) std::ranges::sort(turn.literal_marks);
  places_ = std::move(given);
  if (waiting() != listed.size()) give_listed(listed);
  return places_.empty();
}

size_t MediaPlaces::waiting() const {
  return count_waiting(places_);
}

bool MediaPlaces::has_own() const {
  return waiting() < places_.size();
}

std::vector<Medium> MediaPlaces::fill(const std::vector<Medium>& listed, const MediaRoot& root,
                                      std::string& opening) const {
  const bool are_marked = !places_.empty();
  if (are_marked && waiting() != listed.size()) {
    throw data_error("has {} {} marks for {} {}s: each {} needs one mark", waiting(), kind_->mark, listed.size(),
                     kind_->word, kind_->word);
  }
  const size_t count = are_marked ? places_.size() : listed.size();
  std::vector<Medium> media;
  media.reserve(count);
  auto next = listed.begin();
  for (size_t i = 0; i < count; ++i) {
    if (!are_marked) opening += kind_->mark;
    const bool is_own = are_marked && places_[i].own.has_value();
    media.push_back(placed(is_own ? *places_[i].own : *next++, i + 1, root, *kind_));
  }
  return media;
}

}  // namespace vlmtrain::io

#include "io/content_blocks.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "io/json_scalar.h"
#include "io/key_refusals.h"
#include "io/media_likeness.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

const char* article_of(const MediaKind& kind) {
  return kind.word == kImages.word ? "an" : "a";
}

/// The value of a key that has content.
const json* find_filled(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() || is_blank(*found) ? nullptr : &*found;
}

const MediaKind* kind_of_type(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, const MediaKind*>, 7> kTypes{{{"image", &kImages},
                                                                                 {"image_url", &kImages},
                                                                                 {"input_image", &kImages},
                                                                                 {"volume", &kVolumes},
                                                                                 {"volume_url", &kVolumes},
                                                                                 {"video", &kVideos},
                                                                                 {"video_url", &kVideos}}};
  const auto* found = std::ranges::find(kTypes, type, &std::pair<std::string_view, const MediaKind*>::first);
  return found == kTypes.end() ? nullptr : found->second;
}

bool is_text_type(std::string_view type) {
  return type == "text" || type == "input_text" || type == "output_text";
}

/// The type of a block, where it has none that of the one key with content that names a type.
std::string type_of_block(const json& block, size_t number) {
  const auto type = block.is_object() ? block.find("type") : block.end();
  if (block.is_object() && type != block.end() && type->is_string()) return type->get<std::string>();
  std::string found;
  if (block.is_object() && (type == block.end() || type->is_null())) {
    for (const char* key : {"text", "image", "image_url", "video", "video_url", "volume"}) {
      if (find_filled(block, key) == nullptr) continue;
      if (!found.empty())
        throw data_error("turn {}: a content block has no \"type\", and both \"{}\" and \"{}\"", number, found, key);
      found = key;
    }
  }
  if (found.empty()) throw data_error("turn {}: a content block has no \"type\"", number);
  return found;
}

/// What names the file of a block; null: nothing does.
const json* file_of_block(const json& block, size_t number, const MediaKind& kind) {
  const json* file = find_filled(block, kind.keys[0]);
  if (file != nullptr && block.size() == 2) return file;  // and the type
  for (const char* key : {kind.url_key, "path", "url"}) {
    const json* found = find_filled(block, key);
    if (found == nullptr) continue;
    if (file != nullptr && *file != *found) {
      throw data_error(
          "turn {}: {} {} block names two files, one of them under \"{}\"; keep one, or set "
          "data.ignore_keys=[{}]",
          number, article_of(kind), kind.word, key, key);
    }
    file = found;
  }
  const json* bytes = find_filled(block, "bytes");
  return bytes != nullptr && bytes->is_binary() && (file == nullptr || file->is_string()) ? &block : file;
}

/// What a content block of `kind` brings along, if anything.
std::optional<Medium> own_medium(const json& block, size_t number, const MediaKind& kind, RecordKeys& keys) {
  const json* file = file_of_block(block, number, kind);
  if (file == nullptr) return std::nullopt;
  if (file != &block) keys.check_media(*file);
  if (file->is_object() && find_filled(*file, "bytes") == nullptr) {
    const json* url = find_filled(*file, "url");
    file = url != nullptr ? url : find_filled(*file, "path");
    if (file == nullptr) {
      throw data_error("turn {}: {} {} block has an object without \"url\"", number, article_of(kind), kind.word);
    }
  }
  if (file->is_array()) {
    return medium_of_frames(*file, fmt::format("turn {}: {} {} block", number, article_of(kind), kind.word), kind);
  }
  auto medium = medium_of(*file);
  if (!medium) {
    throw data_error("turn {}: {} {} block's {} is not a path", number, article_of(kind), kind.word, kind.word);
  }
  return medium;
}

/// TRL's data sets number the blocks: n stands for the n-th of the record's images.
void check_index(const json& block, const MediaPlaces& places, size_t number, const MediaKind& kind) {
  const auto index = block.find("index");
  if (index == block.end() || index->is_null()) return;
  if (index->is_number_integer() && std::cmp_equal(index->get<int64_t>(), places.waiting())) return;
  throw data_error(
      "turn {}: {} {} block has \"index\": {}, and blocks take the record's {}s in their order, so it gets number {}; "
      "list them in this order, or set data.ignore_keys=[index]",
      number, article_of(kind), kind.word, value_excerpt(*index), kind.word, places.waiting());
}

std::string text_of_block(const json& block, size_t number) {
  const auto value = block.find("text");
  if (value == block.end()) throw data_error("turn {}: a text block has no \"text\"", number);
  if (value->is_null()) return {};
  auto text = scalar_text(*value);
  if (!text) throw data_error("turn {}: a text block's \"text\" is neither a text nor a number", number);
  return *std::move(text);
}

/// Appends the text or the mark of a block to `text`.
void read_block(const json& block, const TurnToRead& turn, ConversationPlaces& places, RecordKeys& keys,
                std::string& text) {
  const size_t number = turn.index + 1;
  const std::string type = type_of_block(block, number);
  if (is_text_type(type)) {
    keys.check_block(block, "text", number, turn.is_answer, /*has_frames=*/false);
    const std::string piece = text_of_block(block, number);
    places.add_marks_in(piece, turn.index, text.size());
    text += piece;
    return;
  }
  const MediaKind* kind = kind_of_type(type);
  if (kind == nullptr) {
    throw data_error(
        "turn {}: a content block of type \"{}\" is not supported: text, image, image_url, video, video_url and volume "
        "are",
        number, excerpt(type));
  }
  auto medium = own_medium(block, number, *kind, keys);
  keys.check_block(block, kind->word, number, turn.is_answer, kind == &kVideos && medium && takes_frame_rate(*medium));
  MediaPlaces& kind_places = kind == &kVideos ? places.videos : places.images;
  if (!medium) check_index(block, kind_places, number, *kind);
  if (medium && kind == &kVolumes) medium->is_volume = true;
  if (kind == &kVideos && medium && takes_frame_rate(*medium)) {
    std::vector<Medium> one{*std::move(medium)};
    set_frame_rates(block, one);
    medium = std::move(one.front());
  }
  kind_places.add(std::move(medium));
  text += kind->mark;
}

double frame_rate_of(const json& value, const char* key) {
  if (value.is_number() && value.get<double>() > 0) return value.get<double>();
  throw data_error(
      "its \"{}\" of frames is not a number of frames a second; correct it, or set "
      "data.ignore_keys=[{}]",
      key, key);
}

}  // namespace

void ConversationPlaces::add_marks_in(std::string_view text, size_t turn, size_t begin) {
  images.add_marks_in(text, turn, begin);
  videos.add_marks_in(text, turn, begin);
}

void ConversationPlaces::shift_marks(size_t turn, size_t bytes) {
  images.shift_marks(turn, bytes);
  videos.shift_marks(turn, bytes);
}

std::string read_content(const json& content, const TurnToRead& turn, ConversationPlaces& places, RecordKeys& keys) {
  if (content.is_array()) {
    std::string text;
    for (const json& block : content) read_block(block, turn, places, keys, text);
    return text;
  }
  std::optional<std::string> text = scalar_text(content);
  if (!text) {
    throw data_error("turn {}: its text is neither a string nor a list of content blocks", turn.index + 1);
  }
  places.add_marks_in(*text, turn.index, 0);
  return *std::move(text);
}

bool takes_frame_rate(const Medium& video) {
  return !video.frames.empty() || (!video.bytes && !is_named_like_a_video(video.path));
}

void set_frame_rates(const json& object, std::vector<Medium>& media) {
  if (std::ranges::none_of(media, takes_frame_rate)) return;
  for (const char* key : {"fps", "sample_fps", "video_fps"}) {
    const json* value = find_filled(object, key);
    if (value == nullptr) continue;
    if (value->is_array() && value->size() != media.size()) {
      throw data_error("its \"{}\" has {} entries for {} videos; give each one, or one number for all", key,
                       value->size(), media.size());
    }
    for (size_t i = 0; i < media.size(); ++i) {
      if (!takes_frame_rate(media[i])) continue;
      const double fps = frame_rate_of(value->is_array() ? (*value)[i] : *value, key);
      if (media[i].fps != 0 && media[i].fps != fps) {
        throw data_error("has several frame rates of the same frames, one of them under \"{}\"; keep one", key);
      }
      media[i].fps = fps;
    }
  }
}

}  // namespace vlmtrain::io

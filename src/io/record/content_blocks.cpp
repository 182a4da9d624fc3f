#include "io/record/content_blocks.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/key_refusals.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

/// Returns the value of a key if it is not blank, else nullptr.
const RecordJson* find_non_blank_value(const RecordJson& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() || is_blank(*it) ? nullptr : &*it;
}

/// Returns the kind of media of a block type, or nullptr. The types are those of transformers
/// ("image", "video") and of OpenAI's APIs ("image_url", "input_image").
const MediaKind* find_media_kind(std::string_view type) {
  constexpr std::array<std::pair<std::string_view, const MediaKind*>, 7> kMediaKindByType{{{"image", &kImageKind},
                                                                                           {"image_url", &kImageKind},
                                                                                           {"input_image", &kImageKind},
                                                                                           {"volume", &kVolumeKind},
                                                                                           {"volume_url", &kVolumeKind},
                                                                                           {"video", &kVideoKind},
                                                                                           {"video_url", &kVideoKind}}};
  const auto* it = std::ranges::find(kMediaKindByType, type, &std::pair<std::string_view, const MediaKind*>::first);
  return it == kMediaKindByType.end() ? nullptr : it->second;
}

bool is_text_type(std::string_view type) {
  return type == "text" || type == "input_text" || type == "output_text";
}

/// Returns the type of a block. If "type" is missing, the type is the only key with content that is
/// named like one. Throws data_error if there is no such key or several.
std::string get_block_type(const RecordJson& block, size_t turn_number) {
  const auto type = block.is_object() ? block.find("type") : block.end();
  if (block.is_object() && type != block.end() && type->is_string()) return type->get<std::string>();
  std::string inferred_type;
  if (block.is_object() && (type == block.end() || type->is_null())) {
    for (const char* key : {"text", "image", "image_url", "video", "video_url", "volume"}) {
      if (find_non_blank_value(block, key) == nullptr) continue;
      if (!inferred_type.empty())
        throw data_error("turn {}: a content block has no \"type\", and both \"{}\" and \"{}\"", turn_number,
                         inferred_type, key);
      inferred_type = key;
    }
  }
  if (inferred_type.empty()) throw data_error("turn {}: a content block has no \"type\"", turn_number);
  return inferred_type;
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
      throw data_error(
          "turn {}: {} {} block names two files, one of them under \"{}\"; keep one, or set "
          "data.ignore_keys=[{}]",
          turn_number, kind.indefinite_article(), kind.name, key, key);
    }
    file = candidate;
  }
  if (file == nullptr && has_base64_media(block)) return &block;
  const RecordJson* bytes = find_non_blank_value(block, "bytes");
  return bytes != nullptr && bytes->is_binary() && (file == nullptr || file->is_string()) ? &block : file;
}

/// Returns the media of a content block, or nothing if the block stands for the next of the
/// record's listed media.
std::optional<MediaRef> parse_block_media(const RecordJson& block, size_t turn_number, const MediaKind& kind,
                                          RecordKeyChecker& key_checker) {
  const RecordJson* file = find_block_file(block, turn_number, kind);
  if (file == nullptr) return std::nullopt;
  if (file != &block) key_checker.check_media_keys(*file);
  if (file->is_object() && find_non_blank_value(*file, "bytes") == nullptr && !has_base64_media(*file)) {
    const RecordJson* url = find_non_blank_value(*file, "url");
    file = url != nullptr ? url : find_non_blank_value(*file, "path");
    if (file == nullptr) {
      throw data_error("turn {}: {} {} block has an object without \"url\"", turn_number, kind.indefinite_article(),
                       kind.name);
    }
  }
  if (file->is_array()) {
    return parse_frame_list(
        *file, fmt::format("turn {}: {} {} block", turn_number, kind.indefinite_article(), kind.name), kind);
  }
  auto media_ref = parse_media_ref(*file);
  if (!media_ref) {
    throw data_error("turn {}: {} {} block's {} is not a path", turn_number, kind.indefinite_article(), kind.name,
                     kind.name);
  }
  return media_ref;
}

/// Throws data_error unless "index" of a block, as in TRL's data sets, equals the position in the
/// record's list that the block gets.
void check_block_index(const RecordJson& block, const MediaSlots& media, size_t turn_number, const MediaKind& kind) {
  const auto index = block.find("index");
  if (index == block.end() || index->is_null()) return;
  if (index->is_number_integer() && std::cmp_equal(index->get<int64_t>(), media.num_unassigned_slots())) return;
  throw data_error(
      "turn {}: {} {} block has \"index\": {}, but blocks use the record's {}s in order, so it gets number {}; list "
      "them in this order, or set data.ignore_keys=[index]",
      turn_number, kind.indefinite_article(), kind.name, make_value_excerpt(*index), kind.name,
      media.num_unassigned_slots());
}

std::string get_block_text(const RecordJson& block, size_t turn_number) {
  const auto value = block.find("text");
  if (value == block.end()) throw data_error("turn {}: a text block has no \"text\"", turn_number);
  if (value->is_null()) return {};
  auto text = format_scalar(*value);
  if (!text) throw data_error("turn {}: a text block's \"text\" is neither a string nor a number", turn_number);
  return *std::move(text);
}

/// Appends the text or the placeholder of a block to `text`.
void append_block(const RecordJson& block, const TurnContext& turn, ConversationMedia& media,
                  RecordKeyChecker& key_checker, std::string& text) {
  const size_t turn_number = turn.index + 1;
  const std::string type = get_block_type(block, turn_number);
  if (is_text_type(type)) {
    key_checker.check_block_keys(block, "text", turn_number, turn.is_answer, /*needs_frame_rate=*/false);
    const std::string block_text = get_block_text(block, turn_number);
    media.add_text_placeholders(block_text, turn.index, text.size());
    text += block_text;
    return;
  }
  const MediaKind* kind = find_media_kind(type);
  if (kind == nullptr) {
    throw data_error(
        "turn {}: a content block of type \"{}\" is not supported; supported are text, image, image_url, video, "
        "video_url and volume",
        turn_number, make_excerpt(type));
  }
  auto media_ref = parse_block_media(block, turn_number, *kind, key_checker);
  key_checker.check_block_keys(block, kind->name, turn_number, turn.is_answer,
                               kind == &kVideoKind && media_ref && uses_frame_rate(*media_ref));
  MediaSlots& slots = kind == &kVideoKind ? media.videos : media.images;
  if (!media_ref) check_block_index(block, slots, turn_number, *kind);
  if (media_ref && kind == &kVolumeKind) media_ref->is_volume = true;
  if (kind == &kVideoKind && media_ref && uses_frame_rate(*media_ref)) {
    std::vector<MediaRef> videos{*std::move(media_ref)};
    set_frame_rates(block, videos);
    media_ref = std::move(videos.front());
  }
  slots.add(std::move(media_ref));
  text += kind->placeholder;
}

double parse_frame_rate(const RecordJson& value, const char* key) {
  if (value.is_number() && value.get<double>() > 0) return value.get<double>();
  throw data_error("its \"{}\" is not a frame rate (frames per second); correct it, or set data.ignore_keys=[{}]", key,
                   key);
}

}  // namespace

void ConversationMedia::add_text_placeholders(std::string_view text, size_t turn, size_t begin) {
  images.add_text_placeholders(text, turn, begin);
  videos.add_text_placeholders(text, turn, begin);
}

void ConversationMedia::shift_placeholders(size_t turn, size_t bytes) {
  images.shift_placeholders(turn, bytes);
  videos.shift_placeholders(turn, bytes);
}

std::string read_content_text(const RecordJson& content, const TurnContext& turn, ConversationMedia& media,
                              RecordKeyChecker& key_checker) {
  if (content.is_array()) {
    std::string text;
    for (const RecordJson& block : content) append_block(block, turn, media, key_checker, text);
    return text;
  }
  std::optional<std::string> text = format_scalar(content);
  if (!text) {
    throw data_error("turn {}: its text is neither a string nor a list of content blocks", turn.index + 1);
  }
  media.add_text_placeholders(*text, turn.index, 0);
  return *std::move(text);
}

bool uses_frame_rate(const MediaRef& video) {
  return !video.frames.empty() || (!video.bytes && !has_video_extension(video.path));
}

void set_frame_rates(const RecordJson& object, std::vector<MediaRef>& media) {
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

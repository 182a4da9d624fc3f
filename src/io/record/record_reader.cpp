#include "io/record/record_reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/record/content_blocks.h"
#include "io/record/json_values.h"
#include "io/record/key_refusals.h"
#include "io/record/media_slots.h"
#include "io/record/object_marks.h"
#include "io/record/record_columns.h"
#include "io/record/record_keys.h"
#include "io/record/record_media.h"
#include "io/record/record_turns.h"
#include "io/record/tool_turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

/// Returns "id", else `fallback`. An id of another type than string or integer becomes an excerpt.
std::string get_record_id(const RecordJson& record, const std::string& fallback) {
  const RecordJson* id = find_present_value(record, {"id"});
  if (id == nullptr || is_blank(*id)) return to_printable(fallback);
  if (id->is_string()) return to_printable(id->get_ref<const std::string&>());
  return id->is_number_integer() ? id->dump() : make_value_excerpt(*id);
}

// Returns `text` without surrounding whitespace: VQA-RAD has the answer types "CLOSED" and "CLOSED
// ".
std::string trim_whitespace(const std::string& text) {
  const size_t begin = text.find_first_not_of(kJsonWhitespace);
  return begin == std::string::npos ? "" : text.substr(begin, text.find_last_not_of(kJsonWhitespace) + 1 - begin);
}

std::string get_string_field(const RecordJson& record, const char* key) {
  const auto it = record.find(key);
  if (it == record.end() || !it->is_string()) return {};
  return to_printable(trim_whitespace(it->get_ref<const std::string&>()));
}

/// Returns the value of the first key that names the task. "task" and "task_type" may be numbers.
std::string find_task_name(const RecordJson& record) {
  for (const char* key : {"task", "task_type", "kind", "category", "answer_type"}) {
    const auto it = record.find(key);
    if (it == record.end()) continue;
    if (it->is_string()) return get_string_field(record, key);
    if (key[0] == 't' && it->is_number()) return it->dump();
  }
  return {};
}

// Converts image placeholders to video placeholders, because LLaVA's data marks videos with
// <image>. All slots are replaced by slots for the `num_videos` listed videos.
void convert_image_to_video_placeholders(std::vector<Turn>& turns, ConversationMedia& media, size_t num_videos) {
  for (Turn& turn : turns) {
    for (size_t pos = turn.text.find(kImagePlaceholder); pos != std::string::npos;
         pos = turn.text.find(kImagePlaceholder, pos)) {
      turn.text.replace(pos, kImagePlaceholder.size(), kVideoPlaceholder);
    }
  }
  media = ConversationMedia{};
  for (size_t i = 0; i < num_videos; ++i) {
    media.videos.add(std::nullopt);
  }
}

/// Media that a record lists outside of its turns.
struct ListedMedia {
  std::vector<MediaRef> images;  ///< or volumes
  std::vector<MediaRef> videos;
};

ListedMedia parse_record_media(const RecordJson& record_json, MediaSlots& images) {
  ListedMedia listed_media{.images = parse_record_images(record_json, images),
                           .videos = parse_listed_media(record_json, kVideoKind)};
  set_frame_rates(record_json, listed_media.videos);
  return listed_media;
}

/// Matches the media of a record with the placeholders of its turns, and sets Record::images and
/// Record::videos.
void set_record_media(ListedMedia& listed_media, const ImageRoot& root, ConversationMedia& media,
                      RecordKeyChecker& key_checker, Record& record) {
  auto& [images, videos] = listed_media;
  const bool uses_image_placeholders = images.empty() && !videos.empty() && media.videos.empty() &&
                                       media.images.num_unassigned_slots() == videos.size() &&
                                       media.images.size() == videos.size();
  if (uses_image_placeholders) convert_image_to_video_placeholders(record.turns, media, videos.size());
  const bool are_placeholders_literal = media.images.try_mark_literal_placeholders(images, record.turns);
  if (media.videos.try_mark_literal_placeholders(videos, record.turns) || are_placeholders_literal) {
    const auto has_literal_placeholders = [](const Turn& turn) { return !turn.literal_placeholder_offsets.empty(); };
    key_checker.add_notice("a placeholder such as <image> in a record without media, read as text",
                           make_excerpt(std::ranges::find_if(record.turns, has_literal_placeholders)->text));
  }
  check_no_media_in_answers(record.turns);
  std::string leading_placeholders;
  record.images = media.images.collect_media(images, root, leading_placeholders);
  record.videos = media.videos.collect_media(videos, root, leading_placeholders);
  if (!leading_placeholders.empty()) {
    const auto first_user_turn = std::ranges::find(record.turns, Role::kUser, &Turn::role);
    VLMTRAIN_CHECK(first_user_turn != record.turns.end(), "the conversation has no turn of the user");
    leading_placeholders += "\n";
    first_user_turn->text.insert(0, leading_placeholders);
    for (size_t& offset : first_user_turn->literal_placeholder_offsets) offset += leading_placeholders.size();
  }
}

/// Returns whether a record seems to have images and videos, without parsing the values: for a
/// record with invalid values.
RecordContents summarize_record_contents(const RecordJson& record_json, const ConversationMedia& media) {
  const auto has_media_key = [&](const MediaKind& kind) {
    return std::ranges::any_of(kind.keys, [&](const char* key) {
      const auto it = record_json.find(key);
      return it != record_json.end() && !is_blank(*it);
    });
  };
  return {.has_images = has_media_key(kImageKind) || has_media_key(kVolumeKind) || media.images.has_inline_media(),
          .has_videos = has_media_key(kVideoKind) || media.videos.has_inline_media()};
}

/// Sets the turns, media and masks of `record`. Throws data_error if the record cannot be used.
void parse_conversation(RecordJson& record_json, const ImageRoot& root, const BoxTextFinder& boxes,
                        RecordKeyChecker& key_checker, Record& record) {
  ConversationMedia media;
  ListedMedia listed_media;
  RecordContents contents;
  try {
    add_messages(record_json);
    const RecordJson& turns = find_turns(record_json);
    const RecordJson* system_json = find_present_value(record_json, {"system"});
    if (system_json != nullptr && !is_blank(*system_json)) {
      record.turns.push_back({Role::kSystem, read_system_text(*system_json, media, key_checker)});
    }
    for (const RecordJson& turn : turns) read_turn(turn, media, key_checker, record.turns);
    listed_media = parse_record_media(record_json, media.images);
    contents = {.has_images = !listed_media.images.empty() || media.images.has_inline_media(),
                .has_videos = !listed_media.videos.empty() || media.videos.has_inline_media(),
                .needs_frame_rate = std::ranges::any_of(listed_media.videos, uses_frame_rate),
                .turns = record.turns};
    key_checker.check_record_keys(record_json, turns, contents);
  } catch (const UserError&) {
    key_checker.check_record_media_keys(
        record_json, summarize_record_contents(record_json, media));  // may be the cause of the error
    throw;
  }
  check_turn_order(record.turns);
  record.template_variables = parse_template_variables(record_json);
  set_record_media(listed_media, root, media, key_checker, record);
  set_volume_metadata(record_json, record);
  set_object_marks(record_json, boxes, record);
  try {
    record.masks = parse_masks(record_json, root, record.images.size());
  } catch (const UserError& error) {
    record.mask_problem = error.what();
  }
}

/// Returns the problem of a record that is not an object.
std::string describe_non_object(const RecordJson& value) {
  if (!value.is_array() || value.empty() || !value.front().is_object()) return "is not a JSON object";
  const RecordJson& first = value.front();
  if (first.contains("role") || first.contains("from")) {
    return "is a list of turns, not a JSON object; write {\"messages\": [...]}";
  }
  return "is a list of records, not a JSON object; write the records one after another, without the inner brackets";
}

}  // namespace

RecordReader::RecordReader(const RecordSettings& settings, const std::filesystem::path& folder)
    : image_root_{.folder = settings.image_root.value_or(folder),
                  .rejects_outside_paths = settings.restrict_to_image_root},
      columns_(settings.columns),
      ignored_keys_(settings.ignore_keys),
      box_settings_(settings.boxes),
      box_text_finder_(settings.boxes) {}

Record RecordReader::read(RecordJson record_json, const std::string& fallback_id) const {
  Record record;
  if (!record_json.is_object()) {
    record.id = to_printable(fallback_id);
    record.problem = describe_non_object(record_json);
    return record;
  }
  try {
    if (!ignored_keys_.empty()) remove_ignored_keys(record_json, ignored_keys_, columns_);
    rename_columns(record_json, columns_);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  record.id = get_record_id(record_json, fallback_id);
  record.task = find_task_name(record_json);
  record.answer_type = get_string_field(record_json, "answer_type");
  if (!record.problem.empty()) return record;
  try {
    RecordKeyChecker key_checker(columns_, record.notices);
    parse_conversation(record_json, image_root_, box_text_finder_, key_checker, record);
    if (!record.images.empty() || !record.videos.empty())
      add_placeholder_notices(record.turns, !record.objects.empty(), record.notices);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  return record;
}

uint64_t RecordReader::version_hash() const {
  constexpr uint64_t kRecordReaderVersion = 3;  // increment when results of read() change, to invalidate caches
  ContentHash hash;
  hash.add(kRecordReaderVersion).add(image_root_.folder.native()).add(image_root_.rejects_outside_paths ? 1U : 0U);
  for (const auto& [name, source_name] : columns_) hash.add(name).add(source_name);
  hash.add(ignored_keys_.size());
  for (const std::string& key : ignored_keys_) hash.add(key);
  hash.add(box_settings_.unit ? 1 + static_cast<uint64_t>(*box_settings_.unit) : 0U).add(box_settings_.pattern);
  return hash.value();
}

}  // namespace vlmtrain::io

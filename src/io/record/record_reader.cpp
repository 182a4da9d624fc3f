#include "io/record/record_reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "io/record/document.h"
#include "io/record/json_values.h"
#include "io/record/keys/record_keys.h"
#include "io/record/media/media_refs.h"
#include "io/record/media/media_slots.h"
#include "io/record/media/record_media.h"
#include "io/record/notices.h"
#include "io/record/objects/object_marks.h"
#include "io/record/record_columns.h"
#include "io/record/record_turns.h"
#include "io/record/tool_turns.h"
#include "io/record/turn_checks.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {
namespace {

/// Returns "id", else `fallback`. An id of another type than string or integer becomes an excerpt.
std::string get_record_id(const RecordJson& record, const std::string& fallback) {
  const RecordJson* id = find_non_blank_value(record, "id");
  if (id == nullptr) return to_printable(fallback);
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

/// Sets the id, the task and the type of the answer.
void set_labels(const RecordJson& record_json, const std::string& fallback_id, Record& record) {
  record.id = get_record_id(record_json, fallback_id);
  record.task = find_task_name(record_json);
  record.answer_type = get_string_field(record_json, "answer_type");
}

RecordContents summarize_contents(const Conversation& conversation) {
  const auto& [images, videos] = conversation.listed_media;
  return {.has_images = !images.empty() || conversation.media.images.has_inline_media(),
          .has_videos = !videos.empty() || conversation.media.videos.has_inline_media(),
          .needs_frame_rate = std::ranges::any_of(videos, uses_frame_rate)};
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
    rename_columns(record_json, columns_, ignored_keys_);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  set_labels(record_json, fallback_id, record);
  if (!record.problem.empty()) return record;
  Conversation conversation;
  std::optional<RecordJson> document_json;
  RecordJson turns_json;
  try {
    document_json = take_document(record_json);
    if (document_json) {
      read_document(record_json, *document_json, conversation);
    } else {
      turns_json = convert_layout(record_json);
      read_conversation(record_json, turns_json, conversation);
    }
  } catch (const UserError& error) {
    record.problem = error.what();
  }
  record.turns = std::move(conversation.turns);
  check_keys(record_json, conversation.read_objects, summarize_contents(conversation), columns_, record);
  if (!record.problem.empty()) return record;
  try {
    if (!record.is_document()) check_turn_order(record.turns);
    record.template_variables = parse_template_variables(record_json);
    set_record_media(conversation.media, conversation.listed_media, image_root_, record);
    set_volume_metadata(record_json, record);
    set_object_marks(record_json, box_text_finder_, record);
  } catch (const UserError& error) {
    record.problem = error.what();
    return record;
  }
  set_masks(record_json, image_root_, record);
  if (!record.images.empty() || !record.videos.empty())
    add_placeholder_notices(record.turns, !record.objects.empty(), record.notices);
  return record;
}

uint64_t RecordReader::version_hash() const {
  constexpr uint64_t kRecordReaderVersion = 4;  // increment when results of read() change, to invalidate caches
  ContentHash hash;
  hash.add(kRecordReaderVersion).add(image_root_.folder.native()).add(image_root_.rejects_outside_paths ? 1U : 0U);
  for (const auto& [name, source_name] : columns_) hash.add(name).add(source_name);
  hash.add(ignored_keys_.size());
  for (const std::string& key : ignored_keys_) hash.add(key);
  hash.add(box_settings_.unit ? 1 + static_cast<uint64_t>(*box_settings_.unit) : 0U).add(box_settings_.pattern);
  return hash.value();
}

}  // namespace vlmtrain::io

#include "io/record/record_reader.h"

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/keys/record_keys.h"
#include "io/record/media/record_media.h"
#include "io/record/object_marks.h"
#include "io/record/record_columns.h"
#include "io/record/record_turns.h"
#include "io/record/turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/hash.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

namespace {

/// Keys of a conversation that a document cannot have.
constexpr std::array<const char*, 3> kKeysOfConversations{"system", "tools", "chat_template_kwargs"};

/// Returns whether a record has turns, or values that become turns.
bool has_turns(const RecordJson& record) {
  const auto has_content = [&](const char* key) { return find_non_blank_value(record, key) != nullptr; };
  const bool is_alpaca = has_content("output") && (has_content("instruction") || has_content("input"));
  return is_alpaca || has_content("messages") || has_content("conversations") || has_content("question") ||
         has_content("answer") || has_content("caption");
}

/// Returns whether "texts" is a list of texts, as in OBELICS, and not of questions and answers.
bool is_list_of_texts(const RecordJson& texts) {
  return texts.is_array() && !texts.empty() &&
         std::ranges::all_of(texts, [](const RecordJson& text) { return text.is_null() || text.is_string(); });
}

/// Returns the keys with a document. Blank values count, so that an empty text is reported.
std::vector<const char*> find_document_keys(const RecordJson& record) {
  std::vector<const char*> keys;
  for (const char* key : {"text", "document", "texts", "text_list"}) {
    const auto it = record.find(key);
    if (it == record.end() || it->is_null()) continue;
    const std::string_view name = key;
    const bool is_other_layout = (name == "texts" && !is_list_of_texts(*it)) || (name == "document" && !it->is_array());
    if (!is_other_layout) keys.push_back(key);
  }
  // Tables fill the columns that a record does not use with blank values.
  if (keys.size() > 1) std::erase_if(keys, [&](const char* key) { return is_blank(record[key]); });
  return keys;
}

RecordJson make_text_block(std::string_view text) {
  return RecordJson::object({{"type", "text"}, {"text", std::string(text)}});
}

RecordJson make_image_block(RecordJson file) {
  return RecordJson::object({{"type", "image"}, {"image", std::move(file)}});
}

/// Converts "text". Its placeholders stand for the listed media of the record, if there are any.
RecordJson convert_text(RecordJson& record) {
  const RecordJson value = take_field(record, "text");
  if (!value.is_string()) throw data_error("its \"text\" is not a string");
  const Turn turn{.role = Role::kDocument, .text = value.get<std::string>()};
  const auto has_listed_media = [&](const MediaKind& kind) { return count_listed_media(record, kind) > 0; };
  if (!has_listed_media(kImageKind) && !has_listed_media(kVideoKind) && !has_listed_media(kVolumeKind)) {
    return RecordJson::array({make_text_block(turn.text)});
  }
  const std::string_view text = turn.text;
  RecordJson blocks = RecordJson::array();
  size_t pos = 0;
  for (const MediaPlaceholder& placeholder : find_placeholders(turn)) {
    blocks.push_back(make_text_block(text.substr(pos, placeholder.begin - pos)));
    // Without a file, the block stands for the next of the listed media.
    blocks.push_back(RecordJson::object({{"type", placeholder.is_video ? "video" : "image"}}));
    pos = placeholder.begin + kImagePlaceholder.size();
  }
  blocks.push_back(make_text_block(text.substr(pos)));
  return blocks;
}

/// Converts "document".
RecordJson convert_blocks(RecordJson& record) {
  RecordJson blocks = take_field(record, "document");
  for (RecordJson& block : blocks) {
    if (block.is_string()) block = make_text_block(block.get_ref<const std::string&>());
  }
  return blocks;
}

/// Converts "texts" and "images" of OBELICS.
RecordJson convert_texts_and_images(RecordJson& record) {
  const RecordJson texts = take_field(record, "texts");
  RecordJson images = take_field(record, "images");
  if (!images.is_null() && (!images.is_array() || images.size() != texts.size())) {
    throw data_error(
        "its \"texts\" has {} entries and its \"images\" has {}: each index has a text or an image, and null in the "
        "other list",
        texts.size(), images.is_array() ? images.size() : 1);
  }
  RecordJson blocks = RecordJson::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    const bool has_text = !is_blank(texts[i]), has_image = !images.is_null() && !is_blank(images[i]);
    if (has_text == has_image) {
      throw data_error("entry {} of its \"texts\" and \"images\" has {}: each index has a text or an image", i + 1,
                       has_text ? "a text and an image" : "neither a text nor an image");
    }
    blocks.push_back(has_text ? make_text_block(texts[i].get_ref<const std::string&>())
                              : make_image_block(std::move(images[i])));
  }
  return blocks;
}

/// Returns the files of MMC4's "image_info" by the index of their text, in the order of the list.
std::vector<RecordJson> match_images(const RecordJson& image_info, size_t num_texts) {
  std::vector<RecordJson> files(num_texts, RecordJson::array());
  if (!image_info.is_array() && !is_blank(image_info)) throw data_error("its \"image_info\" is not a list of images");
  for (size_t i = 0; i < image_info.size(); ++i) {
    const RecordJson& entry = image_info[i];
    const RecordJson* index = entry.is_object() ? find_non_blank_value(entry, "matched_text_index") : nullptr;
    if (index == nullptr || !index->is_number_integer()) {
      throw data_error("entry {} of its \"image_info\" has no \"matched_text_index\"", i + 1);
    }
    const auto text_index = index->get<int64_t>();
    if (text_index < 0 || std::cmp_greater_equal(text_index, num_texts)) {
      throw data_error("entry {} of its \"image_info\" is for text {} (counted from 0), and \"text_list\" has {}",
                       i + 1, text_index, num_texts);
    }
    const RecordJson* name = find_non_blank_value(entry, "image_name");
    if (name == nullptr) throw data_error("entry {} of its \"image_info\" has no \"image_name\"", i + 1);
    files[static_cast<size_t>(text_index)].push_back(*name);
  }
  return files;
}

/// Converts "text_list" and "image_info" of MMC4. As in OpenFlamingo, an image precedes the text
/// that it matches, and a space separates texts, but no text from an image.
RecordJson convert_matched_images(RecordJson& record) {
  const RecordJson texts = take_field(record, "text_list"), image_info = take_field(record, "image_info");
  if (!texts.is_array()) throw data_error("its \"text_list\" is not a list of texts");
  std::vector<RecordJson> files = match_images(image_info, texts.size());
  RecordJson blocks = RecordJson::array();
  for (size_t i = 0; i < texts.size(); ++i) {
    if (!texts[i].is_string()) throw data_error("entry {} of its \"text_list\" is not a text", i + 1);
    if (i > 0 && files[i].empty()) blocks.push_back(make_text_block(" "));
    for (RecordJson& file : files[i]) blocks.push_back(make_image_block(std::move(file)));
    blocks.push_back(make_text_block(texts[i].get_ref<const std::string&>()));
  }
  return blocks;
}

/// Throws data_error if a document has a key that only conversations have. `key` is its own.
void check_no_conversation_keys(const RecordJson& record, const char* key) {
  for (const char* conversation_key : kKeysOfConversations) {
    if (find_non_blank_value(record, conversation_key) == nullptr) continue;
    throw data_error(
        "is a document (\"{0}\") and has \"{1}\", which only conversations have; write \"messages\", or set {2}=[{1}] "
        "to train without it",
        key, conversation_key, keys::data::kIgnoreKeys);
  }
}

/// Moves the document out of a record and returns it as a list of content blocks; nothing if the
/// record is not a document, but has turns or a caption. The keys of a document are
/// - "text": a text, with placeholders for the record's listed media;
/// - "document": a list of texts and content blocks;
/// - "texts" and "images" of OBELICS: lists of equal length, each index with a text or an image;
/// - "text_list" and "image_info" of MMC4.
/// Throws data_error for an invalid or ambiguous document.
std::optional<RecordJson> take_document(RecordJson& record) {
  if (has_turns(record)) return std::nullopt;
  const std::vector<const char*> keys = find_document_keys(record);
  if (keys.empty()) return std::nullopt;
  if (keys.size() > 1) {
    throw data_error("has the documents \"{0}\" and \"{1}\"; keep one, or set {2}=[{1}]", keys[0], keys[1],
                     keys::data::kIgnoreKeys);
  }
  check_no_conversation_keys(record, keys.front());
  const std::string_view key = keys.front();
  if (key == "text") return convert_text(record);
  if (key == "document") return convert_blocks(record);
  return key == "texts" ? convert_texts_and_images(record) : convert_matched_images(record);
}

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

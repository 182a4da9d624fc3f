#include "io/record/keys/record_keys.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/keys/key_rules.h"
#include "io/record/media/record_media.h"
#include "io/record/turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {
namespace {

/// Returns the key without its number: "image" for "image_1", "image2" and "image-03". Returns ""
/// without a number.
std::string_view strip_trailing_number(std::string_view key) {
  const size_t last_non_digit = key.find_last_not_of("0123456789");
  if (last_non_digit == std::string_view::npos || last_non_digit + 1 == key.size()) return {};
  const std::string_view name = key.substr(0, last_non_digit + 1);
  return name.ends_with('_') || name.ends_with('-') ? name.substr(0, last_non_digit) : name;
}

/// Returns the rule of a record's key. A numbered key ("image_2", "img3") has the rule of the key
/// without the number.
KeyRule find_record_key_rule(std::string_view key) {
  const KeyRule rule = get_key_rule(KeyScope::kRecord, key);
  if (rule != KeyRule::kUnknown) return rule;
  const std::string_view name = strip_trailing_number(key);
  if (name.empty()) return KeyRule::kUnknown;
  if (name == "image" || get_key_rule(KeyScope::kRecord, name) == KeyRule::kImage) return KeyRule::kImage;
  if (name == "video" || get_key_rule(KeyScope::kRecord, name) == KeyRule::kVideo) return KeyRule::kVideo;
  return KeyRule::kUnknown;
}

/// Returns true if a turn has one of ms-swift's placeholders for entries of "objects".
bool has_box_placeholders(std::span<const Turn> turns) {
  return std::ranges::any_of(turns, [](const Turn& turn) {
    return turn.text.find("<bbox>") != std::string::npos || turn.text.find("<ref-object>") != std::string::npos;
  });
}

/// Returns true if a block has only "type" and the key that is named like the type, as most blocks
/// do.
bool has_only_type_key(const RecordJson& block, std::string_view type) {
  if (block.size() != 2) return false;
  const auto first = block.begin(), second = std::next(first);
  return (first.key() == type && second.key() == "type") || (first.key() == "type" && second.key() == type);
}

/// Returns true if a turn may have a video that uses a frame rate (uses_frame_rate).
bool may_need_frame_rate(const RecordJson& turn) {
  return std::ranges::any_of(std::array{"video", "videos"}, [&](const char* key) {
    const auto it = turn.find(key);
    const bool is_path = it != turn.end() && it->is_string();
    return it != turn.end() && (it->is_array() || (is_path && !has_video_extension(it->get_ref<const std::string&>())));
  });
}

/// A checker for the unread keys of one record. Its functions throw data_error for a key that makes
/// the record unusable.
class RecordKeyChecker {
 public:
  RecordKeyChecker(const RecordContents& contents, const std::map<std::string, std::string>& columns, Record& record)
      : contents_(contents), columns_(columns), record_(record) {}

  void check_object(const ReadObject& object);
  void check_record_keys(const RecordJson& record_json);
  /// Throws data_error if the record has an image or a video only under a key that is not read.
  void check_record_media_keys(const RecordJson& record_json);

 private:
  void check_record_key(const std::string& key, const RecordJson& value, KeyRule rule);
  void check_record_media_key(const std::string& key, const RecordJson& value, KeyRule rule);
  void check_turn_keys(const ReadObject& turn);
  void check_block_keys(const ReadObject& block);
  void check_media_keys(const RecordJson& value);
  bool is_mapped_column(const std::string& key) const;
  void add_key_notice(std::string_view scope, const std::string& key, const RecordJson& value);

  const RecordContents& contents_;
  const std::map<std::string, std::string>& columns_;
  Record& record_;
};

bool RecordKeyChecker::is_mapped_column(const std::string& key) const {
  return std::ranges::any_of(columns_, [&](const auto& column) { return column.second == key; });
}

void RecordKeyChecker::add_key_notice(std::string_view scope, const std::string& key, const RecordJson& value) {
  add_notice(fmt::format("key \"{}\" of {}", make_excerpt(key), scope), make_value_excerpt(value), record_.notices);
}

void RecordKeyChecker::check_object(const ReadObject& object) {
  if (object.scope == KeyScope::kTurn) return check_turn_keys(object);
  if (object.scope == KeyScope::kBlock) return check_block_keys(object);
  check_media_keys(*object.json);
}

void RecordKeyChecker::check_record_keys(const RecordJson& record_json) {
  for (auto entry = record_json.begin(); entry != record_json.end(); ++entry) {
    const KeyRule rule = find_record_key_rule(entry.key());
    if ((rule == KeyRule::kMedia || rule == KeyRule::kNonNumeric) && entry->is_structured()) check_media_keys(*entry);
    if (is_acceptable_value(rule, *entry) || is_mapped_column(entry.key())) continue;
    check_record_key(entry.key(), *entry, rule);
  }
}

void RecordKeyChecker::check_record_key(const std::string& key, const RecordJson& value, KeyRule rule) {
  const auto reject = [&] { reject_key(rule, "", key, make_value_excerpt(value)); };
  switch (rule) {
    case KeyRule::kFrameRate:
      if (contents_.needs_frame_rate) return;
      break;
    case KeyRule::kSampleWeight:
      if (parse_switch(value) == false || parse_fraction(value).value_or(1) != 1) reject();
      break;
    case KeyRule::kChosenAnswer:
      if (record_.turns.empty() || record_.turns.back().role != Role::kAssistant) reject();
      break;
    case KeyRule::kBoxes:
      if (has_box_placeholders(record_.turns)) return;  // set_object_marks() reads them
      break;
    case KeyRule::kSystemText:
      if (value.is_string() || value.is_structured()) reject_system_text(/*is_record_key=*/true, "", key);
      break;
    case KeyRule::kUnknown:
    case KeyRule::kImage:
    case KeyRule::kVideo:
      check_record_media_key(key, value, rule);
      break;
    case KeyRule::kTurns:  // the turns that were read are null
    case KeyRule::kString:
    case KeyRule::kStringOrNumber:
    case KeyRule::kNonNumeric:
      break;
    default:
      reject();
  }
  add_key_notice("a record", key, value);
}

void RecordKeyChecker::check_record_media_key(const std::string& key, const RecordJson& value, KeyRule rule) {
  const bool is_numbered = rule != KeyRule::kUnknown && !strip_trailing_number(key).empty();
  bool is_image = rule == KeyRule::kImage;
  if (rule == KeyRule::kImage || rule == KeyRule::kVideo) {
    const bool has_media = is_image ? contents_.has_images : contents_.has_videos;
    const bool can_be_media = value.is_string() || value.is_binary() || value.is_structured();
    if (!can_be_media || (has_media && !is_numbered)) return;
  } else {
    if (rule != KeyRule::kUnknown || contents_.has_images || contents_.has_videos) return;
    const MediaType media_type = classify_media(value);
    if (media_type == MediaType::kNone) return;
    is_image = media_type == MediaType::kImage;
  }
  const MediaForm form = is_numbered ? MediaForm::kNumbered : find_media_form(value);
  reject_record_media_key(key, is_image ? "image" : "video", form);
}

void RecordKeyChecker::check_record_media_keys(const RecordJson& record_json) {
  for (auto entry = record_json.begin(); entry != record_json.end(); ++entry) {
    const KeyRule rule = find_record_key_rule(entry.key());
    if (is_acceptable_value(rule, *entry) || is_mapped_column(entry.key())) continue;
    check_record_media_key(entry.key(), *entry, rule);
  }
}

void RecordKeyChecker::check_turn_keys(const ReadObject& turn) {
  if (turn.has_unread_role) add_key_notice("a turn", "role", turn.json->at("role"));
  for (auto entry = turn.json->begin(); entry != turn.json->end(); ++entry) {
    const std::string& key = entry.key();
    if (key == "role" || key == "content" || key == "from" || key == "value") continue;
    const bool is_unread_field =
        is_message_field(key) && std::ranges::find(turn.read_fields, key) == turn.read_fields.end();
    const KeyRule rule = is_unread_field ? KeyRule::kUnknown : get_key_rule(KeyScope::kTurn, key);
    if (is_acceptable_value(rule, *entry)) {
      if (rule == KeyRule::kMedia) check_media_keys(*entry);
      continue;
    }
    const std::string prefix = fmt::format("turn {} ", turn.turn_number);
    switch (rule) {
      case KeyRule::kFrameRate:
        if (may_need_frame_rate(*turn.json)) break;
        [[fallthrough]];
      case KeyRule::kUnknown:
        add_key_notice("a turn", key, *entry);
        break;
      case KeyRule::kLossMask:
      case KeyRule::kInverseLossMask:
        break;  // only answers are learned, and their masks are read
      case KeyRule::kSystemText:
        reject_system_text(/*is_record_key=*/false, prefix, key);
      case KeyRule::kImage:
        reject_media_key(prefix, key, "image");
      case KeyRule::kVideo:
        reject_media_key(prefix, key, "video");
      default:
        reject_key(rule, prefix, key, make_value_excerpt(*entry));
    }
  }
}

void RecordKeyChecker::check_block_keys(const ReadObject& block) {
  const std::string_view type = block.block_type;
  if (has_only_type_key(*block.json, type)) return;
  const bool is_text = type == "text";
  for (auto entry = block.json->begin(); entry != block.json->end(); ++entry) {
    const std::string& key = entry.key();
    const KeyRule rule = get_key_rule(KeyScope::kBlock, key);
    if (is_blank(*entry) || (rule != KeyRule::kRead && is_acceptable_value(rule, *entry))) continue;
    const std::string scope = fmt::format("a content block of type \"{}\"", type);
    const std::string prefix = fmt::format("turn {}: {} ", block.turn_number, scope);
    switch (rule) {
      case KeyRule::kRead: {
        if (key == "type" || key == "index") break;
        const bool is_content_key = key == "path" || key == "url" || key == "bytes" || key == "source" ||
                                    std::ranges::find(kBase64Keys, key) != kBase64Keys.end();
        if (is_content_key) {
          if (is_text) add_key_notice(scope, key, *entry);
          break;
        }
        const bool is_expected_key = key == type || (!is_text && key == std::string(type) + "_url");
        if (is_expected_key) break;
        if (key == "text") reject_key(KeyRule::kBlockText, prefix, key, make_value_excerpt(*entry));
        throw data_error("{}has \"{}\" too; give each its own block, or set {}=[{}] to train without it", prefix, key,
                         keys::data::kIgnoreKeys, key);
      }
      case KeyRule::kFrameRate:
        if (block.needs_frame_rate) break;
        [[fallthrough]];
      case KeyRule::kUnknown:
        add_key_notice(scope, key, *entry);
        break;
      case KeyRule::kLossMask:
        if (block.is_answer) reject_key(rule, prefix, key, make_value_excerpt(*entry));
        break;
      case KeyRule::kImage:
        reject_media_key(prefix, key, "image");
      case KeyRule::kVideo:
        reject_media_key(prefix, key, "video");
      default:
        reject_key(rule, prefix, key, make_value_excerpt(*entry));
    }
  }
}

void RecordKeyChecker::check_media_keys(const RecordJson& value) {
  if (value.is_array()) {
    for (const RecordJson& entry : value) {
      if (entry.is_structured()) check_media_keys(entry);
    }
    return;
  }
  if (!value.is_object()) return;
  for (auto entry = value.begin(); entry != value.end(); ++entry) {
    const std::string& key = entry.key();
    if (!is_acceptable_value(get_key_rule(KeyScope::kMediaObject, key), *entry))
      add_key_notice("an image or a video", key, *entry);
  }
}

/// Returns true if a record seems to have media of a kind, without parsing the values.
bool has_media_key(const RecordJson& record_json, const MediaKind& kind) {
  return std::ranges::any_of(kind.keys,
                             [&](const char* key) { return find_non_blank_value(record_json, key) != nullptr; });
}

}  // namespace

void check_keys(const RecordJson& record_json, const std::vector<ReadObject>& read_objects,
                const RecordContents& contents, const std::map<std::string, std::string>& columns, Record& record) {
  RecordContents present_contents = contents;
  RecordKeyChecker checker(present_contents, columns, record);
  auto object = read_objects.begin();
  try {
    for (; object != read_objects.end(); ++object) checker.check_object(*object);
    if (record.problem.empty()) return checker.check_record_keys(record_json);
  } catch (const UserError& error) {
    record.problem = error.what();
    if (object != read_objects.end()) record.turns.resize(object->turn_number - 1);
  }
  present_contents.has_images |= has_media_key(record_json, kImageKind) || has_media_key(record_json, kVolumeKind);
  present_contents.has_videos |= has_media_key(record_json, kVideoKind);
  try {
    checker.check_record_media_keys(record_json);
  } catch (const UserError& error) {
    record.problem = error.what();
  }
}

}  // namespace vlmtrain::io

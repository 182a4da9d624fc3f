#include "io/record/record_keys.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/key_refusals.h"
#include "io/record/media_slots.h"
#include "io/record/tool_turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

bool matches_any(const RecordJson& value, std::initializer_list<std::string_view> values) {
  return value.is_string() && std::ranges::find(values, value.get_ref<const std::string&>()) != values.end();
}

bool is_true_value(const RecordJson& value) {
  return parse_switch(value) == true;
}

bool is_false_value(const RecordJson& value) {
  return parse_switch(value) == false;
}

/// Returns true if a key needs no notice or error: it is read or harmless, or its value means the
/// same as an absent key.
bool is_acceptable_value(KeyRule rule, const RecordJson& value) {
  if (is_blank(value)) return true;
  switch (rule) {
    case KeyRule::kRead:
    case KeyRule::kMedia:
    case KeyRule::kHarmless:
      return true;
    case KeyRule::kString:
      return value.is_string();
    case KeyRule::kStringOrNumber:
      return value.is_string() || value.is_number();
    case KeyRule::kNonNumeric:
      return !value.is_number() && !value.is_boolean();
    case KeyRule::kLossMask:
    case KeyRule::kPreferenceLabel:
    case KeyRule::kSampleWeight:
      return is_true_value(value);
    case KeyRule::kInverseLossMask:
      return is_false_value(value);
    case KeyRule::kTools:  // LLaMA-Factory and ms-swift write the list as a string
      return matches_any(value, {"[]", "{}", "null", "None"});
    default:
      return false;
  }
}

/// Returns the key without its number: "image" for "image_1", "image2" and "image-03". Returns ""
/// without a number.
std::string_view strip_trailing_number(std::string_view key) {
  const size_t last_non_digit = key.find_last_not_of("0123456789");
  if (last_non_digit == std::string_view::npos || last_non_digit + 1 == key.size()) return {};
  const std::string_view name = key.substr(0, last_non_digit + 1);
  return name.ends_with('_') || name.ends_with('-') ? name.substr(0, last_non_digit) : name;
}

/// The rule of a record's key. A numbered key ("image_2", "img3") has the rule of the key without
/// the number.
struct RecordKeyRule {
  KeyRule rule;
  bool is_numbered = false;
};

RecordKeyRule find_record_key_rule(std::string_view key) {
  const KeyRule rule = get_key_rule(KeyScope::kRecord, key);
  if (rule != KeyRule::kUnknown) return {rule};
  const std::string_view name = strip_trailing_number(key);
  if (name.empty()) return {KeyRule::kUnknown};
  if (name == "image" || get_key_rule(KeyScope::kRecord, name) == KeyRule::kImage) return {KeyRule::kImage, true};
  if (name == "video" || get_key_rule(KeyScope::kRecord, name) == KeyRule::kVideo) return {KeyRule::kVideo, true};
  return {KeyRule::kUnknown};
}

bool ends_with_answer(std::span<const Turn> turns) {
  return !turns.empty() && turns.back().role == Role::kAssistant;
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

bool can_be_media(const RecordJson& value) {
  return value.is_string() || value.is_binary() || value.is_structured();
}

}  // namespace

void remove_ignored_keys(RecordJson& record, const std::vector<std::string>& ignored_keys,
                         const std::map<std::string, std::string>& columns) {
  const auto erase_ignored_keys = [&](RecordJson& object) {
    for (const std::string& key : ignored_keys) object.erase(key);
  };
  const auto erase_and_visit_entries = [&](RecordJson& list, const auto& visit) {
    if (!list.is_array()) return;
    for (RecordJson& entry : list) {
      if (!entry.is_object()) continue;
      erase_ignored_keys(entry);
      visit(entry);
    }
  };
  for (const std::string& key : ignored_keys) {
    const auto is_mapped = [&](const auto& column) { return column.second == key; };
    if (std::ranges::none_of(columns, is_mapped)) record.erase(key);
  }
  for (const char* turns : {"messages", "conversations", "texts"}) {
    if (!record.contains(turns)) continue;
    erase_and_visit_entries(record[turns], [&](RecordJson& turn) {
      for (const char* content : {"content", "value"}) {
        if (turn.contains(content)) erase_and_visit_entries(turn[content], [](RecordJson&) {});
      }
    });
  }
}

bool RecordKeyChecker::is_mapped_column(const std::string& key) const {
  return std::ranges::any_of(columns_, [&](const auto& column) { return column.second == key; });
}

void RecordKeyChecker::add_notice(std::string kind, std::string example) {
  if (std::ranges::find(notices_, kind, &Notice::kind) != notices_.end()) return;
  notices_.push_back({.kind = std::move(kind), .example = std::move(example)});
}

void RecordKeyChecker::check_record_keys(const RecordJson& record, const RecordJson& turns,
                                         const RecordContents& contents) {
  for (auto entry = record.begin(); entry != record.end(); ++entry) {
    const auto [rule, is_numbered] = find_record_key_rule(entry.key());
    if ((rule == KeyRule::kMedia || rule == KeyRule::kNonNumeric) && entry->is_structured()) check_media_keys(*entry);
    if (is_acceptable_value(rule, *entry) || is_mapped_column(entry.key())) continue;
    check_record_key(entry.key(), *entry, rule, turns, contents);
  }
}

void RecordKeyChecker::check_record_key(const std::string& key, const RecordJson& value, KeyRule rule,
                                        const RecordJson& turns, const RecordContents& contents) {
  const auto add_key_notice = [&] {
    add_notice(fmt::format("key \"{}\" of a record", make_excerpt(key)), make_value_excerpt(value));
  };
  switch (rule) {
    case KeyRule::kTurns:
      if (&value != &turns) add_key_notice();
      return;
    case KeyRule::kFrameRate:
      if (!contents.needs_frame_rate) add_key_notice();
      return;
    case KeyRule::kSampleWeight: {
      const bool is_fraction =
          value.is_number() && value.get<double>() > 0 && value.get<double>() < 1 && key == "weight";
      if (is_false_value(value) || is_fraction) reject_key(rule, "", key, value);
      return add_key_notice();
    }
    case KeyRule::kChosenAnswer:
      if (!ends_with_answer(contents.turns)) reject_key(rule, "", key, value);
      return add_key_notice();
    case KeyRule::kBoxes:
      if (!has_box_placeholders(contents.turns)) add_key_notice();
      return;
    case KeyRule::kSystemText:
      if (!value.is_string() && !value.is_structured()) return add_key_notice();
      reject_system_text(/*is_record_key=*/true, "", key);
    case KeyRule::kUnknown:
    case KeyRule::kImage:
    case KeyRule::kVideo:
      check_record_media_key(key, value, rule, contents);
      return add_key_notice();
    case KeyRule::kString:
    case KeyRule::kStringOrNumber:
    case KeyRule::kNonNumeric:
      return add_key_notice();
    default:
      reject_key(rule, "", key, value);
  }
}

void RecordKeyChecker::check_record_media_key(const std::string& key, const RecordJson& value, KeyRule rule,
                                              const RecordContents& contents) {
  if (rule == KeyRule::kImage || rule == KeyRule::kVideo) {
    const bool is_image = rule == KeyRule::kImage;
    const bool is_numbered = !strip_trailing_number(key).empty();
    const bool has_media = is_image ? contents.has_images : contents.has_videos;
    if (can_be_media(value) && (!has_media || is_numbered)) {
      reject_record_media_key(key, value, is_image ? "image" : "video", is_numbered);
    }
  } else if (rule == KeyRule::kUnknown && !contents.has_images && !contents.has_videos) {
    const JsonMediaType json_media_type = classify_media(value);
    if (json_media_type == JsonMediaType::kNone) return;
    reject_record_media_key(key, value, json_media_type == JsonMediaType::kImage ? "image" : "video",
                            /*is_numbered=*/false);
  }
}

void RecordKeyChecker::check_record_media_keys(const RecordJson& record, const RecordContents& contents) {
  for (auto entry = record.begin(); entry != record.end(); ++entry) {
    const auto [rule, is_numbered] = find_record_key_rule(entry.key());
    if (is_acceptable_value(rule, *entry) || is_mapped_column(entry.key())) continue;
    check_record_media_key(entry.key(), *entry, rule, contents);
  }
}

bool RecordKeyChecker::check_turn_keys(const RecordJson& turn, size_t turn_number,
                                       const std::vector<TemplateValue>& fields) {
  bool has_media = false;
  for (auto entry = turn.begin(); entry != turn.end(); ++entry) {
    const std::string& key = entry.key();
    if (key == "role" || key == "content" || key == "from" || key == "value") continue;
    KeyRule rule = get_key_rule(KeyScope::kTurn, key);
    const bool is_read = std::ranges::find(fields, key, &TemplateValue::name) != fields.end();
    if (is_message_field(key) && !is_read) rule = KeyRule::kUnknown;  // of another role
    if (is_acceptable_value(rule, *entry)) {
      if (rule != KeyRule::kMedia || is_blank(*entry)) continue;
      has_media = true;
      check_media_keys(*entry);
      continue;
    }
    const std::string prefix = fmt::format("turn {} ", turn_number);
    switch (rule) {
      case KeyRule::kFrameRate:
        if (may_need_frame_rate(turn)) break;
        [[fallthrough]];
      case KeyRule::kUnknown:
        add_notice(fmt::format("key \"{}\" of a turn", make_excerpt(entry.key())), make_value_excerpt(*entry));
        break;
      case KeyRule::kLossMask:
      case KeyRule::kInverseLossMask:
        break;  // parse_is_learned() reads those of answers; only answers are learned
      case KeyRule::kSystemText:
        reject_system_text(/*is_record_key=*/false, prefix, entry.key());
      case KeyRule::kImage:
        reject_media_key(prefix, entry.key(), "image");
      case KeyRule::kVideo:
        reject_media_key(prefix, entry.key(), "video");
      default:
        reject_key(rule, prefix, entry.key(), *entry);
    }
  }
  return has_media;
}

void RecordKeyChecker::check_block_keys(const RecordJson& block, std::string_view type, size_t turn_number,
                                        bool is_answer, bool needs_frame_rate) {
  if (has_only_type_key(block, type)) return;
  const bool is_text = type == "text";
  for (auto entry = block.begin(); entry != block.end(); ++entry) {
    const std::string& key = entry.key();
    const KeyRule rule = get_key_rule(KeyScope::kBlock, key);
    if (is_blank(*entry) || (rule != KeyRule::kRead && is_acceptable_value(rule, *entry))) continue;
    const auto prefix = [&] { return fmt::format("turn {}: a content block of type \"{}\" ", turn_number, type); };
    switch (rule) {
      case KeyRule::kRead: {
        if (key == "type" || key == "index") break;
        const bool is_content_key = key == "path" || key == "url" || key == "bytes" || key == "source" ||
                                    std::ranges::find(kBase64Keys, key) != kBase64Keys.end();
        if (is_content_key) {
          if (is_text)
            add_notice(fmt::format("key \"{}\" of a content block of type \"text\"", key), make_value_excerpt(*entry));
          break;
        }
        const bool is_expected_key = key == type || (!is_text && key == std::string(type) + "_url");
        if (is_expected_key) break;
        if (key == "text") reject_key(KeyRule::kBlockText, prefix(), key, *entry);
        throw data_error("{}has \"{}\" too; give each its own block, or set data.ignore_keys=[{}] to train without it",
                         prefix(), key, key);
      }
      case KeyRule::kFrameRate:
        if (needs_frame_rate) break;
        [[fallthrough]];
      case KeyRule::kUnknown:
        add_notice(fmt::format("key \"{}\" of a content block of type \"{}\"", make_excerpt(key), type),
                   make_value_excerpt(*entry));
        break;
      case KeyRule::kLossMask:
        if (is_answer) reject_key(rule, prefix(), key, *entry);
        break;
      case KeyRule::kImage:
        reject_media_key(prefix(), key, "image");
      case KeyRule::kVideo:
        reject_media_key(prefix(), key, "video");
      default:
        reject_key(rule, prefix(), key, *entry);
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
    const KeyRule rule = get_key_rule(KeyScope::kMediaObject, entry.key());
    if (is_acceptable_value(rule, *entry)) continue;
    add_notice(fmt::format("key \"{}\" of an image or a video", make_excerpt(entry.key())), make_value_excerpt(*entry));
  }
}

}  // namespace vlmtrain::io

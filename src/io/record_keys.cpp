#include "io/record_keys.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <optional>
#include <utility>

#include "io/key_refusals.h"
#include "io/media_likeness.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"

namespace vlmtrain::io {
namespace {

using nlohmann::json;

bool is_one_of(const json& value, std::initializer_list<std::string_view> words) {
  return value.is_string() && std::ranges::find(words, value.get_ref<const std::string&>()) != words.end();
}

bool means_yes(const json& value) {
  return (value.is_boolean() && value.get<bool>()) || (value.is_number() && value.get<double>() == 1.0) ||
         is_one_of(value, {"true", "True", "1", "1.0"});
}

bool means_no(const json& value) {
  return (value.is_boolean() && !value.get<bool>()) || (value.is_number() && value.get<double>() == 0.0) ||
         is_one_of(value, {"false", "False", "0", "0.0"});
}

/// Whether a value is the same as an absent key.
bool changes_nothing(KeyRule rule, const json& value) {
  if (is_blank(value)) return true;
  switch (rule) {
    case KeyRule::kRead:
    case KeyRule::kMedia:
    case KeyRule::kHarmless:
      return true;
    case KeyRule::kWord:
      return value.is_string();
    case KeyRule::kName:
      return value.is_string() || value.is_number();
    case KeyRule::kAmount:
      return !value.is_number() && !value.is_boolean();
    case KeyRule::kLossMask:
    case KeyRule::kDesirable:
    case KeyRule::kSampleWeight:
      return means_yes(value);
    case KeyRule::kLossMaskOff:
      return means_no(value);
    case KeyRule::kTool:  // LLaMA-Factory and ms-swift have the list as a text
      return is_one_of(value, {"[]", "{}", "null", "None"});
    default:
      return false;
  }
}

/// "image" of "image_1", "image2" and "image-03"; empty without a number.
std::string_view without_number(std::string_view key) {
  const size_t last = key.find_last_not_of("0123456789");
  if (last == std::string_view::npos || last + 1 == key.size()) return {};
  const std::string_view name = key.substr(0, last + 1);
  return name.ends_with('_') || name.ends_with('-') ? name.substr(0, last) : name;
}

/// The rule of a record's key, of numbered ones ("image_2", "img3") that of what is numbered.
struct FoundRule {
  KeyRule rule;
  bool is_numbered = false;
};

FoundRule rule_of_record_key(std::string_view key) {
  const KeyRule rule = rule_of_key(KeyPlace::kRecord, key);
  if (rule != KeyRule::kUnknown) return {rule};
  const std::string_view name = without_number(key);
  if (name.empty()) return {KeyRule::kUnknown};
  if (name == "image" || rule_of_key(KeyPlace::kRecord, name) == KeyRule::kImage) return {KeyRule::kImage, true};
  if (name == "video" || rule_of_key(KeyPlace::kRecord, name) == KeyRule::kVideo) return {KeyRule::kVideo, true};
  return {KeyRule::kUnknown};
}

bool ends_with_answer(std::span<const Turn> turns) {
  return !turns.empty() && turns.back().role == Role::kAssistant;
}

/// ms-swift writes the numbers of "objects" in their place.
bool has_marks_of_boxes(std::span<const Turn> turns) {
  return std::ranges::any_of(turns, [](const Turn& turn) {
    return turn.text.find("<bbox>") != std::string::npos || turn.text.find("<ref-object>") != std::string::npos;
  });
}

/// Whether a block has its type and what it is named after, as most do.
bool has_nothing_else(const json& block, std::string_view type) {
  if (block.size() != 2) return false;
  const auto first = block.begin(), second = std::next(first);
  return (first.key() == type && second.key() == "type") || (first.key() == "type" && second.key() == type);
}

/// Whether a turn has a video that may be frames without a rate of their own.
bool has_video_without_rate(const json& turn) {
  return std::ranges::any_of(std::array{"video", "videos"}, [&](const char* key) {
    const auto found = turn.find(key);
    const bool is_path = found != turn.end() && found->is_string();
    return found != turn.end() &&
           (found->is_array() || (is_path && !is_named_like_a_video(found->get_ref<const std::string&>())));
  });
}

bool can_be_media(const json& value) {
  return value.is_string() || value.is_binary() || value.is_structured();
}

}  // namespace

void remove_ignored_keys(json& record, const std::vector<std::string>& ignored,
                         const std::map<std::string, std::string>& columns) {
  const auto remove_from = [&](json& object) {
    for (const std::string& key : ignored) object.erase(key);
  };
  const auto remove_from_all = [&](json& list, const auto& next) {
    if (!list.is_array()) return;
    for (json& entry : list) {
      if (!entry.is_object()) continue;
      remove_from(entry);
      next(entry);
    }
  };
  for (const std::string& key : ignored) {
    const auto is_mapped = [&](const auto& column) { return column.second == key; };
    if (std::ranges::none_of(columns, is_mapped)) record.erase(key);
  }
  for (const char* turns : {"messages", "conversations", "texts"}) {
    if (!record.contains(turns)) continue;
    remove_from_all(record[turns], [&](json& turn) {
      for (const char* content : {"content", "value"}) {
        if (turn.contains(content)) remove_from_all(turn[content], [](json&) {});
      }
    });
  }
}

bool RecordKeys::is_column(const std::string& key) const {
  return std::ranges::any_of(columns_, [&](const auto& column) { return column.second == key; });
}

void RecordKeys::add_notice(std::string kind, std::string example) {
  if (std::ranges::find(notices_, kind, &Notice::kind) != notices_.end()) return;
  notices_.push_back({.kind = std::move(kind), .example = std::move(example)});
}

void RecordKeys::check_record(const json& record, const json& turns, const ReadRecord& read) {
  for (auto entry = record.begin(); entry != record.end(); ++entry) {
    const auto [rule, is_numbered] = rule_of_record_key(entry.key());
    if ((rule == KeyRule::kMedia || rule == KeyRule::kAmount) && entry->is_structured()) check_media(*entry);
    if (changes_nothing(rule, *entry) || is_column(entry.key())) continue;
    check_key_of_record(entry.key(), *entry, rule, turns, read);
  }
}

void RecordKeys::check_key_of_record(const std::string& key, const json& value, KeyRule rule, const json& turns,
                                     const ReadRecord& read) {
  const auto notice = [&] { add_notice(fmt::format("key \"{}\" of a record", excerpt(key)), value_excerpt(value)); };
  switch (rule) {
    case KeyRule::kTurns:
      if (&value != &turns) notice();
      return;
    case KeyRule::kFrameRate:
      if (!read.has_frames) notice();
      return;
    case KeyRule::kSampleWeight: {
      const bool is_part = value.is_number() && value.get<double>() > 0 && value.get<double>() < 1 && key == "weight";
      if (means_no(value) || is_part) refuse_key(rule, "", key, value);
      return notice();
    }
    case KeyRule::kChosen:
      if (!ends_with_answer(read.turns)) refuse_key(rule, "", key, value);
      return notice();
    case KeyRule::kBoxes:
      if (has_marks_of_boxes(read.turns)) refuse_key(rule, "", key, value);
      return notice();
    case KeyRule::kSystemText:
      if (!value.is_string() && !value.is_structured()) return notice();
      refuse_system_text(/*is_of_record=*/true, "", key);
    case KeyRule::kUnknown:
    case KeyRule::kImage:
    case KeyRule::kVideo:
      check_medium_of_record(key, value, rule, read);
      return notice();
    case KeyRule::kWord:
    case KeyRule::kName:
    case KeyRule::kAmount:
      return notice();
    default:
      refuse_key(rule, "", key, value);
  }
}

void RecordKeys::check_medium_of_record(const std::string& key, const json& value, KeyRule rule,
                                        const ReadRecord& read) {
  if (rule == KeyRule::kImage || rule == KeyRule::kVideo) {
    const bool is_image = rule == KeyRule::kImage;
    const bool is_numbered = !without_number(key).empty();
    const bool has_one = is_image ? read.has_images : read.has_videos;
    if (can_be_media(value) && (!has_one || is_numbered)) {
      refuse_medium_of_record(key, value, is_image ? "image" : "video", is_numbered);
    }
  } else if (rule == KeyRule::kUnknown && !read.has_images && !read.has_videos) {
    const MediaLikeness likeness = find_media_likeness(value);
    if (likeness == MediaLikeness::kNone) return;
    refuse_medium_of_record(key, value, likeness == MediaLikeness::kImage ? "image" : "video", /*is_numbered=*/false);
  }
}

void RecordKeys::check_media_of_record(const json& record, const ReadRecord& read) {
  for (auto entry = record.begin(); entry != record.end(); ++entry) {
    const auto [rule, is_numbered] = rule_of_record_key(entry.key());
    if (changes_nothing(rule, *entry) || is_column(entry.key())) continue;
    check_medium_of_record(entry.key(), *entry, rule, read);
  }
}

bool RecordKeys::check_turn(const json& turn, size_t number, bool is_answer) {
  bool has_media = false;
  for (auto entry = turn.begin(); entry != turn.end(); ++entry) {
    const std::string& key = entry.key();
    if (key == "role" || key == "content" || key == "from" || key == "value") continue;
    const KeyRule rule = rule_of_key(KeyPlace::kTurn, key);
    if (changes_nothing(rule, *entry)) {
      if (rule != KeyRule::kMedia || is_blank(*entry)) continue;
      has_media = true;
      check_media(*entry);
      continue;
    }
    const std::string who = fmt::format("turn {} ", number);
    switch (rule) {
      case KeyRule::kFrameRate:
        if (has_video_without_rate(turn)) break;
        [[fallthrough]];
      case KeyRule::kUnknown:
        add_notice(fmt::format("key \"{}\" of a turn", excerpt(entry.key())), value_excerpt(*entry));
        break;
      case KeyRule::kLossMask:
      case KeyRule::kLossMaskOff:
        if (is_answer) refuse_key(rule, who, entry.key(), *entry);  // no other turn is learned
        break;
      case KeyRule::kSystemText:
        refuse_system_text(/*is_of_record=*/false, who, entry.key());
      case KeyRule::kImage:
        refuse_medium(who, entry.key(), "image");
      case KeyRule::kVideo:
        refuse_medium(who, entry.key(), "video");
      default:
        refuse_key(rule, who, entry.key(), *entry);
    }
  }
  return has_media;
}

void RecordKeys::check_block(const json& block, std::string_view type, size_t number, bool is_answer, bool has_frames) {
  if (has_nothing_else(block, type)) return;
  const bool is_text = type == "text";
  for (auto entry = block.begin(); entry != block.end(); ++entry) {
    const std::string& key = entry.key();
    const KeyRule rule = rule_of_key(KeyPlace::kBlock, key);
    if (is_blank(*entry) || (rule != KeyRule::kRead && changes_nothing(rule, *entry))) continue;
    const auto who = [&] { return fmt::format("turn {}: a content block of type \"{}\" ", number, type); };
    switch (rule) {
      case KeyRule::kRead: {
        if (key == "type" || key == "index") break;
        if (key == "path" || key == "url" || key == "bytes") {
          if (is_text)
            add_notice(fmt::format("key \"{}\" of a content block of type \"text\"", key), value_excerpt(*entry));
          break;
        }
        const bool is_its_own = key == type || (!is_text && key == std::string(type) + "_url");
        if (is_its_own) break;
        if (key == "text") refuse_key(KeyRule::kText, who(), key, *entry);
        throw data_error("{}has \"{}\" too; give each its own block, or set data.ignore_keys=[{}] to train without it",
                         who(), key, key);
      }
      case KeyRule::kFrameRate:
        if (has_frames) break;
        [[fallthrough]];
      case KeyRule::kUnknown:
        add_notice(fmt::format("key \"{}\" of a content block of type \"{}\"", excerpt(key), type),
                   value_excerpt(*entry));
        break;
      case KeyRule::kLossMask:
        if (is_answer) refuse_key(rule, who(), key, *entry);
        break;
      case KeyRule::kImage:
        refuse_medium(who(), key, "image");
      case KeyRule::kVideo:
        refuse_medium(who(), key, "video");
      default:
        refuse_key(rule, who(), key, *entry);
    }
  }
}

void RecordKeys::check_media(const json& value) {
  if (value.is_array()) {
    for (const json& entry : value) {
      if (entry.is_structured()) check_media(entry);
    }
    return;
  }
  if (!value.is_object()) return;
  for (auto entry = value.begin(); entry != value.end(); ++entry) {
    const KeyRule rule = rule_of_key(KeyPlace::kMedium, entry.key());
    if (changes_nothing(rule, *entry)) continue;
    if (rule == KeyRule::kEncoded) refuse_key(rule, "an image or a video ", entry.key(), *entry);
    add_notice(fmt::format("key \"{}\" of an image or a video", excerpt(entry.key())), value_excerpt(*entry));
  }
}

}  // namespace vlmtrain::io

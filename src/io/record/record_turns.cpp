#include "io/record/record_turns.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/key_refusals.h"
#include "io/record/record_media.h"
#include "io/record/tool_turns.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

namespace {

std::optional<Role> parse_role(const RecordJson& name) {
  constexpr std::array<std::pair<std::string_view, Role>, 5> kRoleByName{{{"human", Role::kUser},
                                                                          {"user", Role::kUser},
                                                                          {"gpt", Role::kAssistant},
                                                                          {"assistant", Role::kAssistant},
                                                                          {"system", Role::kSystem}}};
  if (!name.is_string()) return std::nullopt;
  const auto& text = name.get_ref<const std::string&>();
  if (is_tool_output_role(text)) return Role::kTool;
  if (is_tool_call_role(text)) return Role::kAssistant;
  const auto* it = std::ranges::find(kRoleByName, text, &std::pair<std::string_view, Role>::first);
  return it == kRoleByName.end() ? std::nullopt : std::optional(it->second);
}

/// Returns the role of a turn, under "from" or "role". If both are present and only "from" is a
/// role, "role" becomes a notice. Throws data_error for a missing, unknown or contradictory role.
Role read_role(const RecordJson& turn, size_t turn_number, RecordKeyChecker& key_checker) {
  const RecordJson* from = find_present_value(turn, {"from"});
  const RecordJson* role = find_present_value(turn, {"role"});
  const RecordJson* name = from != nullptr ? from : role;
  if (name == nullptr || !name->is_string()) {
    throw data_error("turn {} has no role: \"from\" or \"role\" is missing", turn_number);
  }
  const auto parsed_role = parse_role(*name);
  const auto& role_name = name->get_ref<const std::string&>();
  if (!parsed_role) {
    throw data_error("turn {} has the unknown role \"{}\"; supported are human, user, gpt, assistant, system and tool",
                     turn_number, make_excerpt(role_name));
  }
  if (from == nullptr || role == nullptr || parse_role(*role) == parsed_role) return *parsed_role;
  if (parse_role(*role)) {
    throw data_error("turn {} is from \"{}\" and has the role \"{}\"; keep one, or set data.ignore_keys=[role]",
                     turn_number, role_name, make_value_excerpt(*role));
  }
  key_checker.add_notice("key \"role\" of a turn", make_value_excerpt(*role));
  return *parsed_role;
}

/// Returns whether the role of a turn means that its content is a tool call.
bool has_tool_call_role(const RecordJson& turn) {
  const RecordJson* name = find_present_value(turn, {"from", "role"});
  return name != nullptr && name->is_string() && is_tool_call_role(name->get_ref<const std::string&>());
}

/// Returns the content of a turn: "value" or "content". Throws data_error if both have content and
/// differ, or if neither is present.
const RecordJson& get_turn_content(const RecordJson& turn, size_t turn_number) {
  const RecordJson* const value = find_present_value(turn, {"value"});
  const RecordJson* const content = find_present_value(turn, {"content"});
  if (value == nullptr && content == nullptr) throw data_error("turn {} is empty", turn_number);
  if (value == nullptr || content == nullptr) return value == nullptr ? *content : *value;
  if (is_blank(*value)) return *content;
  if (!is_blank(*content) && *value != *content) {
    throw data_error(
        "turn {} has both \"value\" and \"content\", which differ; keep one, or set data.ignore_keys=[content]",
        turn_number);
  }
  return *value;
}

/// Assigns the media that a turn names to its placeholders, or inserts placeholders before its
/// text. `first_slot_indices` are the indices of the turn's first slots of images and of videos.
void read_turn_media(const RecordJson& turn_json, size_t index, std::pair<size_t, size_t> first_slot_indices,
                     ConversationMedia& media, std::string& text) {
  std::string placeholders;
  const auto assign_media = [&](const MediaKind& kind, MediaSlots& slots, size_t first,
                                std::vector<MediaRef> turn_media) {
    for (size_t i = slots.assign_turn_media(std::move(turn_media), first, index); i > 0; --i)
      placeholders += kind.placeholder;
  };
  assign_media(kImageKind, media.images, first_slot_indices.first, parse_images_or_volumes(turn_json));
  std::vector<MediaRef> videos = parse_listed_media(turn_json, kVideoKind);
  set_frame_rates(turn_json, videos);
  assign_media(kVideoKind, media.videos, first_slot_indices.second, std::move(videos));
  if (placeholders.empty()) return;
  placeholders += "\n";
  media.shift_placeholders(index, placeholders.size());
  text.insert(0, placeholders);
}

constexpr std::string_view kUnsupportedPlaceholderNotice =
    "an image placeholder of another format, read as text (write <image> or <video>)";
constexpr std::string_view kCoordinatesInTextNotice =
    "coordinates in a text, learned as written: pixel coordinates of the file do not match a resized image "
    "(data.boxes.in converts them)";

/// Maximum length of a tag that is searched for: `<image_placeholder>` and a number of 5 digits.
constexpr size_t kMaxTagLength = 24;

bool begins_with_word(std::string_view tag, std::string_view word) {
  return tag.size() >= word.size() && std::ranges::equal(tag.substr(0, word.size()), word, [](char c, char expected) {
           return std::tolower(static_cast<unsigned char>(c)) == expected;
         });
}

/// Returns true for an image or video placeholder of another format. `tag` is the text from "<" to
/// ">". HTML with attributes is plain text.
bool is_unsupported_placeholder(std::string_view tag) {
  if (tag == kImagePlaceholder || tag == kVideoPlaceholder || tag.find('=') != std::string_view::npos) return false;
  return std::ranges::any_of(std::array<std::string_view, 3>{"<image", "<img", "<video"},
                             [tag](std::string_view word) { return begins_with_word(tag, word); });
}

/// Returns true for a tag that begins coordinates.
bool is_coordinate_tag(std::string_view tag) {
  return tag == "<|box_start|>" || tag == "<|point_start|>" || tag == "<box>" || tag == "<point>";
}

void add_notice_once(std::string_view kind, std::string_view example, std::vector<Notice>& notices) {
  if (std::ranges::count(notices, kind, &Notice::kind) > 0) return;
  notices.push_back({.kind = std::string(kind), .example = make_excerpt(std::string(example))});
}

}  // namespace

const RecordJson& find_turns(const RecordJson& record) {
  for (const char* key : {"messages", "conversations"}) {
    const auto it = record.find(key);
    if (it == record.end() || it->is_null()) {
      continue;
    }
    if (it->is_array() && it->empty() && key == std::string_view("messages") &&
        find_present_value(record, {"conversations"}) != nullptr) {
      continue;  // an empty column of a table whose other rows use it
    }
    if (!it->is_array()) {
      throw data_error("its \"{}\" is not a list of turns", key);
    }
    if (it->empty()) {
      throw data_error("its \"{}\" is empty: a question and its answer are expected", key);
    }
    return *it;
  }
  throw data_error(
      "has no \"conversations\" and no \"messages\", nor a \"question\" and its \"answer\" or a \"caption\"; set "
      "data.columns if they have other names");
}

void read_turn(const RecordJson& turn_json, ConversationMedia& media, RecordKeyChecker& key_checker,
               std::vector<Turn>& turns) {
  const size_t turn_number = turns.size() + 1;
  if (!turn_json.is_object()) throw data_error("turn {} is not a JSON object", turn_number);
  const Role role = read_role(turn_json, turn_number, key_checker);
  const TurnContext context{.index = turns.size(), .is_answer = role == Role::kAssistant};
  Turn turn{.role = role, .text = {}, .fields = parse_message_fields(turn_json, role, turn_number)};
  const bool has_media = key_checker.check_turn_keys(turn_json, turn_number, turn.fields);
  if (role == Role::kAssistant) turn.is_learned = parse_is_learned(turn_json, turn_number);
  if (has_tool_call_role(turn_json)) {
    const TemplateValue calls = parse_tool_call_content(get_turn_content(turn_json, turn_number), turn_number);
    const bool continues_calls = !turns.empty() && !turns.back().has_content;
    if (!continues_calls) turns.push_back(std::move(turn));
    turns.back().has_content = false;
    append_tool_calls(calls, turns.back());
    return;
  }
  const std::pair first_slot_indices{media.images.size(), media.videos.size()};
  const bool may_lack_content =
      has_answer_fields(turn) && find_present_value(turn_json, {"value", "content"}) == nullptr;
  if (may_lack_content) {
    turn.has_content = false;
  } else {
    turn.text = read_content_text(get_turn_content(turn_json, turn_number), context, media, key_checker);
  }
  if (has_media) read_turn_media(turn_json, context.index, first_slot_indices, media, turn.text);
  const bool may_be_empty = has_answer_fields(turn) || role == Role::kTool;
  if (!may_be_empty && turn.text.find_first_not_of(kJsonWhitespace) == std::string::npos) {
    throw data_error("turn {} is empty", turn_number);
  }
  turns.push_back(std::move(turn));
}

std::string read_system_text(const RecordJson& system_json, ConversationMedia& media, RecordKeyChecker& key_checker) {
  const TurnContext turn{.index = 0, .is_answer = false};
  const auto is_text = [](const RecordJson& entry) { return entry.is_string(); };
  if (!system_json.is_array() || !std::ranges::all_of(system_json, is_text)) {
    if (system_json.is_object())
      throw data_error(
          "its \"system\" is neither a string nor a list of content blocks; write it as text, or set "
          "data.ignore_keys=[system] to train without it");
    return read_content_text(system_json, turn, media, key_checker);
  }
  std::string text;
  for (const RecordJson& line : system_json) {
    if (!text.empty()) text += "\n";
    text += line.get_ref<const std::string&>();
  }
  media.add_text_placeholders(text, turn.index, 0);
  return text;
}

void check_no_media_in_answers(const std::vector<Turn>& turns) {
  for (size_t i = 0; i < turns.size(); ++i) {
    if (turns[i].role != Role::kAssistant) continue;
    const std::vector<MediaPlaceholder> placeholders = find_placeholders(turns[i]);
    if (placeholders.empty()) continue;
    const MediaKind& kind = placeholders.front().is_video ? kVideoKind : kImageKind;
    throw data_error("turn {} is the assistant's and has {} {}: training to answer with one is not supported", i + 1,
                     kind.indefinite_article(), kind.name);
  }
}

void add_placeholder_notices(const std::vector<Turn>& turns, bool are_coordinates_read, std::vector<Notice>& notices) {
  for (const Turn& turn : turns) {
    const std::string_view text = turn.text;
    for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
      const size_t end = text.substr(pos, kMaxTagLength).find('>');
      if (end == std::string_view::npos) continue;
      const std::string_view tag = text.substr(pos, end + 1);
      if (turn.role == Role::kUser && is_unsupported_placeholder(tag))
        add_notice_once(kUnsupportedPlaceholderNotice, tag, notices);
      if (!are_coordinates_read && is_coordinate_tag(tag)) add_notice_once(kCoordinatesInTextNotice, tag, notices);
    }
    for (const std::string_view key : {"\"bbox_2d\"", "\"point_2d\""}) {
      if (!are_coordinates_read && text.find(key) != std::string_view::npos)
        add_notice_once(kCoordinatesInTextNotice, key, notices);
    }
  }
}

}  // namespace vlmtrain::io

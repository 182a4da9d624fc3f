#include "io/record/turn_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/media/media_refs.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {

namespace {

bool has_any(const Turn& turn, std::string_view field) {
  return std::ranges::any_of(turn.fields, [&](const TemplateValue& value) { return value.name == field; });
}

/// Returns whether an answer calls tools, in a field or in its text (Hermes, Llama, Mistral).
bool calls_tools(const Turn& turn) {
  constexpr std::array kCallMarkers =
      std::to_array<std::string_view>({"tool_call", "TOOL_CALLS", "function_call", "<function", "<|python_tag|>"});
  return has_any(turn, "tool_calls") || std::ranges::any_of(kCallMarkers, [&](std::string_view marker) {
           return turn.text.find(marker) != std::string::npos;
         });
}

}  // namespace

void check_turn_order(const std::vector<Turn>& turns) {
  const size_t first = turns.front().role == Role::kSystem ? 1 : 0;
  bool is_users_turn = true;  // whether the user's turn is next
  for (size_t i = first; i < turns.size(); ++i) {
    const Role role = turns[i].role;
    if (role == Role::kTool) {
      const bool follows_tool = i > first && turns[i - 1].role == Role::kTool;
      const bool follows_call = i > first && turns[i - 1].role == Role::kAssistant && calls_tools(turns[i - 1]);
      if (!follows_tool && !follows_call) {
        throw data_error(
            "turn {} is the output of a tool, and no tool call of the assistant precedes it; add the call as "
            "\"tool_calls\" of the turn before, or remove the record",
            i + 1);
      }
      is_users_turn = false;
      continue;
    }
    const Role expected_role = is_users_turn ? Role::kUser : Role::kAssistant;
    if (role != expected_role) {
      throw data_error("turn {} should be the {}'s: after an optional system turn, user and assistant alternate", i + 1,
                       expected_role == Role::kUser ? "user" : "assistant");
    }
    is_users_turn = role == Role::kAssistant;
  }
  if (std::ranges::none_of(turns, [](const Turn& turn) { return turn.role == Role::kAssistant; })) {
    throw data_error("has no assistant turn, so there is nothing to learn");
  }
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

namespace {

constexpr std::string_view kUnsupportedPlaceholderNotice =
    "an image placeholder of another format, read as text (write <image> or <video>)";
/// Completed by the key that converts coordinates.
constexpr const char* kCoordinatesInTextNotice =
    "coordinates in a text, learned as written: pixel coordinates of the file do not match a resized image ({} "
    "converts them)";

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

void add_coordinates_notice(std::string_view example, std::vector<Notice>& notices) {
  add_notice(fmt::format(kCoordinatesInTextNotice, keys::data::kBoxesIn), make_excerpt(std::string(example)), notices);
}

}  // namespace

void add_notice(std::string kind, std::string example, std::vector<Notice>& notices) {
  if (std::ranges::find(notices, kind, &Notice::kind) != notices.end()) return;
  notices.push_back({.kind = std::move(kind), .example = std::move(example)});
}

void add_placeholder_notices(const std::vector<Turn>& turns, bool are_coordinates_read, std::vector<Notice>& notices) {
  for (const Turn& turn : turns) {
    const std::string_view text = turn.text;
    for (size_t pos = text.find('<'); pos != std::string_view::npos; pos = text.find('<', pos + 1)) {
      const size_t end = text.substr(pos, kMaxTagLength).find('>');
      if (end == std::string_view::npos) continue;
      const std::string_view tag = text.substr(pos, end + 1);
      if (turn.role == Role::kUser && is_unsupported_placeholder(tag))
        add_notice(std::string(kUnsupportedPlaceholderNotice), make_excerpt(std::string(tag)), notices);
      if (!are_coordinates_read && is_coordinate_tag(tag)) add_coordinates_notice(tag, notices);
    }
    for (const std::string_view key : {"\"bbox_2d\"", "\"point_2d\""}) {
      if (!are_coordinates_read && text.find(key) != std::string_view::npos) add_coordinates_notice(key, notices);
    }
  }
}

}  // namespace vlmtrain::io

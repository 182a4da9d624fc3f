#include "io/record/turn_checks.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "io/record/media/media_refs.h"
#include "vlmtrain/base/error.h"

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

}  // namespace vlmtrain::io

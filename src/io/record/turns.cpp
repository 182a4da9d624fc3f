#include "io/record/turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string>
#include <string_view>
#include <utility>

#include "io/record/json_values.h"
#include "io/record/media/record_media.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::io {

namespace {

/// A field of a message, and the role whose messages have it.
struct MessageField {
  const char* key;
  Role role;
};
constexpr std::array<MessageField, 6> kMessageFields{{{"tool_calls", Role::kAssistant},
                                                      {"reasoning_content", Role::kAssistant},
                                                      {"reasoning", Role::kAssistant},
                                                      {"thinking", Role::kAssistant},
                                                      {"tool_call_id", Role::kTool},
                                                      {"name", Role::kTool}}};

/// Returns the fix of an error about a key's value.
std::string advise_correction(std::string_view key) {
  return fmt::format("correct it, or set {}=[{}] to train without it", keys::data::kIgnoreKeys, key);
}

/// Returns a value that may be written as JSON text. Throws data_error that begins with `name` and
/// ends with `advice`.
RecordJson parse_json_text(const RecordJson& value, const std::string& name, const std::string& advice) {
  if (!value.is_string()) return value;
  const auto& text = value.get_ref<const std::string&>();
  if (auto parsed = try_parse_record_json(text)) return *std::move(parsed);
  const JsonError error = find_json_error(text);
  throw data_error("{} is not JSON at line {}, column {}: {}; {}", name, error.line, error.column, error.reason,
                   advice);
}

/// Returns a tool call in the form of OpenAI's messages.
RecordJson make_tool_call(const RecordJson& call, size_t turn_number) {
  const auto name = call.is_object() ? call.find("name") : call.end();
  if (name == call.end() || !name->is_string()) {
    throw data_error(
        "turn {}: its tool call is not an object with \"name\" and \"arguments\"; correct it, or remove the record",
        turn_number);
  }
  RecordJson function = {{"name", *name}};
  const auto arguments = call.find("arguments");
  function["arguments"] = arguments == call.end() ? RecordJson::object() : *arguments;
  return {{"type", "function"}, {"function", std::move(function)}};
}

/// Returns a tool in the form of OpenAI's requests. LLaMA-Factory and ms-swift write only the
/// function.
RecordJson wrap_tool(RecordJson tool) {
  const bool is_function = tool.is_object() && tool.contains("name") && !tool.contains("function");
  return is_function ? RecordJson{{"type", "function"}, {"function", std::move(tool)}} : tool;
}

/// Throws data_error, as parse_json_text(), unless `list` is a list of objects.
void check_object_list(const RecordJson& list, const std::string& name, const std::string& advice) {
  const auto is_object = [](const RecordJson& entry) { return entry.is_object(); };
  if (list.is_array() && std::ranges::all_of(list, is_object)) return;
  throw data_error("{} is not a list of objects; {}", name, advice);
}

/// Throws data_error if `key` is reasoning and `fields` have other reasoning under another key.
void check_single_reasoning(const std::vector<TemplateValue>& fields, std::string_view key, const RecordJson& value,
                            size_t turn_number) {
  constexpr std::array kReasoningKeys = std::to_array<std::string_view>({"reasoning_content", "reasoning", "thinking"});
  const auto is_reasoning = [&](std::string_view name) {
    return std::ranges::find(kReasoningKeys, name) != kReasoningKeys.end();
  };
  if (!is_reasoning(key)) return;
  for (const TemplateValue& field : fields) {
    if (!is_reasoning(field.name) || field.json == to_json_string(value)) continue;
    throw data_error("turn {} has other reasoning under \"{}\" than under \"{}\"; keep one, or set {}=[{}]",
                     turn_number, key, field.name, keys::data::kIgnoreKeys, key);
  }
}

/// Throws data_error, as parse_json_text(), if a tool call has no name. An OpenAI call has it in its
/// "function".
void check_call_names(const RecordJson& calls, const std::string& name, const std::string& advice) {
  for (const RecordJson& call : calls) {
    const auto function = call.find("function");
    const RecordJson& named = function != call.end() && function->is_object() ? *function : call;
    const auto it = named.find("name");
    if (it == named.end() || !it->is_string() || it->get_ref<const std::string&>().empty())
      throw data_error("{} has a call whose \"name\" is no text; {}", name, advice);
  }
}

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

bool is_tool_output_role(std::string_view role) {
  constexpr std::array kRoles =
      std::to_array<std::string_view>({"tool", "function", "observation", "ipython", "tool_response", "tool_result"});
  return std::ranges::find(kRoles, role) != kRoles.end();
}

bool is_tool_call_role(std::string_view role) {
  return role == "function_call" || role == "tool_call";
}

TemplateValue parse_tool_call_content(const RecordJson& content, size_t turn_number) {
  const RecordJson calls =
      parse_json_text(content, fmt::format("turn {}: its tool call", turn_number), "correct it, or remove the record");
  RecordJson list = RecordJson::array();
  if (calls.is_array()) {
    for (const RecordJson& call : calls) list.push_back(make_tool_call(call, turn_number));
  } else {
    list.push_back(make_tool_call(calls, turn_number));
  }
  return {.name = "tool_calls", .json = to_json_string(list)};
}

void append_tool_calls(const TemplateValue& calls, Turn& turn) {
  const auto field = std::ranges::find(turn.fields, calls.name, &TemplateValue::name);
  if (field == turn.fields.end()) {
    turn.fields.push_back(calls);
    return;
  }
  RecordJson list = RecordJson::parse(field->json);
  for (RecordJson& call : RecordJson::parse(calls.json)) list.push_back(std::move(call));
  field->json = to_json_string(list);
}

bool is_message_field(std::string_view key) {
  return std::ranges::find(kMessageFields, key, &MessageField::key) != kMessageFields.end();
}

std::vector<TemplateValue> parse_message_fields(const RecordJson& turn, Role role, size_t turn_number) {
  std::vector<TemplateValue> fields;
  for (const auto& [key, field_role] : kMessageFields) {
    const auto it = turn.find(key);
    if (field_role != role || it == turn.end() || is_blank(*it)) continue;
    const std::string name = fmt::format("turn {}: its \"{}\"", turn_number, key), advice = advise_correction(key);
    if (std::string_view(key) == "tool_calls") {
      const RecordJson calls = parse_json_text(*it, name, advice);
      if (is_blank(calls)) continue;
      check_object_list(calls, name, advice);
      check_call_names(calls, name, advice);
      fields.push_back({.name = key, .json = to_json_string(calls)});
    } else {
      if (!it->is_string()) throw data_error("{} is not a string; {}", name, advice);
      check_single_reasoning(fields, key, *it, turn_number);
      fields.push_back({.name = key, .json = to_json_string(*it)});
    }
  }
  return fields;
}

std::vector<TemplateValue> parse_template_variables(const RecordJson& record) {
  std::vector<TemplateValue> variables;
  if (const RecordJson* tools = find_present_value(record, {"tools"}); tools != nullptr && !is_blank(*tools)) {
    const std::string name = "its \"tools\"", advice = advise_correction("tools");
    RecordJson list = parse_json_text(*tools, name, advice);
    if (!is_blank(list)) {
      check_object_list(list, name, advice);
      // A text comes from trainers that write only the functions.
      for (RecordJson& tool : list) tool = tools->is_string() ? wrap_tool(std::move(tool)) : std::move(tool);
      variables.push_back({.name = "tools", .json = to_json_string(list)});
    }
  }
  const RecordJson* arguments = find_present_value(record, {"chat_template_kwargs"});
  if (arguments == nullptr || is_blank(*arguments)) return variables;
  if (!arguments->is_object())
    throw data_error("its \"chat_template_kwargs\" is not an object; {}", advise_correction("chat_template_kwargs"));
  for (auto entry = arguments->begin(); entry != arguments->end(); ++entry) {
    constexpr std::array kReservedNames =
        std::to_array<std::string_view>({"messages", "tools", "documents", "add_generation_prompt"});
    if (std::ranges::find(kReservedNames, entry.key()) != kReservedNames.end()) {
      throw data_error("its \"chat_template_kwargs\" has \"{}\", which is set for each prompt; remove it", entry.key());
    }
    variables.push_back({.name = entry.key(), .json = to_json_string(*entry)});
  }
  return variables;
}

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

#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

// Tools, tool calls and reasoning of a record. The forms are those of transformers' and OpenAI's
// messages ("tools", "tool_calls", roles "tool", "reasoning_content"), of LLaMA-Factory (roles
// "function_call" and "observation") and of ms-swift (roles "tool_call" and "tool_response").

/// Returns whether a role name means the output of a tool.
bool is_tool_output_role(std::string_view role);

/// Returns whether a role name means an assistant's turn that is a tool call. Its content is a JSON
/// object {"name", "arguments"}, a list of these, or the text of one.
bool is_tool_call_role(std::string_view role);

/// Returns the field "tool_calls" of a turn whose role is_tool_call_role(). `content` is its
/// content. Throws data_error if it is no tool call.
TemplateValue parse_tool_call_content(const RecordJson& content, size_t turn_number);

/// Appends the tool calls of `calls` to those of `turn`.
void append_tool_calls(const TemplateValue& calls, Turn& turn);

/// Returns whether `key` is a field of a message that chat templates read besides role and content.
bool is_message_field(std::string_view key);

/// Returns the message fields of a turn: of an answer "tool_calls", "reasoning_content", "reasoning"
/// and "thinking", of a tool's output "tool_call_id" and "name". Omits blank ones. Throws
/// data_error for a value of the wrong type.
std::vector<TemplateValue> parse_message_fields(const RecordJson& turn, Role role, size_t turn_number);

/// Returns the variables of the chat template in a record: "tools", a list or its JSON text, and the
/// entries of "chat_template_kwargs". Throws data_error for other values, and for names that are
/// set by the renderer, such as "messages".
std::vector<TemplateValue> parse_template_variables(const RecordJson& record);

// Checks of all turns of a record, and notices about them.

/// Throws data_error unless turns follow one another as in a conversation: an optional system turn,
/// then alternately the user and the assistant, with at least one answer. Outputs of tools follow
/// an answer that calls tools, and the assistant follows them. REQUIRES: `turns` is not empty.
void check_turn_order(const std::vector<Turn>& turns);

/// Throws data_error if a turn of the assistant has a placeholder of an image or a video.
void check_no_media_in_answers(const std::vector<Turn>& turns);

/// Adds a notice unless `notices` has one of this kind.
void add_notice(std::string kind, std::string example, std::vector<Notice>& notices);

/// Adds notices about texts that other trainers interpret but this one learns as they are: image
/// placeholders in other spellings (`<image 1>`, `<IMAGE>`, `<img>`) in turns of the user, and
/// unless `are_coordinates_read`, coordinates in the formats of Qwen-VL, InternVL and Molmo, which do
/// not match a resized image.
void add_placeholder_notices(const std::vector<Turn>& turns, bool are_coordinates_read, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

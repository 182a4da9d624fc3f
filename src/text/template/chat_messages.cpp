#include <nlohmann/json.hpp>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "text/template/template_probe.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::text {
namespace {

/// Returns the number of bytes of the line break at the beginning of `text`, or 0.
size_t count_line_break_bytes(std::string_view text) {
  if (text.starts_with("\r\n")) return 2;
  return text.starts_with('\n') ? 1 : 0;
}

/// Returns the name of `role` in a message.
const char* get_role_name(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
    case Role::kTool:
      return "tool";
    case Role::kDocument:
      throw InternalError("a document has no chat template");
  }
  throw InternalError("unknown role");
}

/// Returns the value of `type`, with the origin kBlockTypeOrigin.
jinja::Value make_block_type_value(const char* type) {
  return jinja::Value::text(type, kBlockTypeOrigin);
}

/// Returns a block that has only a type.
jinja::Value make_media_block(const char* type) {
  return jinja::Value::dict({{"type", make_block_type_value(type)}});
}

/// Returns a block of text whose characters have the origin `origin`.
jinja::Value make_text_block(std::string_view text, int origin) {
  return jinja::Value::dict(
      {{"type", make_block_type_value("text")}, {"text", jinja::Value::text(std::string(text), origin)}});
}

/// Returns the content of `turn` as a list of blocks. The list is never empty.
jinja::Value make_content_blocks(const Turn& turn, int origin) {
  std::vector<jinja::Value> blocks;
  for (const TurnPiece& piece : split_at_placeholders(turn)) {
    switch (piece.kind) {
      case TurnPiece::Kind::kImage:
        blocks.push_back(make_media_block("image"));
        break;
      case TurnPiece::Kind::kVideo:
        blocks.push_back(make_media_block("video"));
        break;
      case TurnPiece::Kind::kText:
        blocks.push_back(make_text_block(piece.text, origin));
        break;
    }
  }
  if (blocks.empty()) blocks.push_back(make_text_block("", origin));
  return jinja::Value::list(std::move(blocks));
}

/// Returns the content of `turn` as one string, with the markup of the model family in place of
/// placeholders.
jinja::Value make_string_content(const Turn& turn, int origin, const TemplateSettings& settings) {
  std::string text;
  bool is_at_turn_start = true;
  for (const TurnPiece& piece : split_at_placeholders(turn)) {
    if (piece.kind == TurnPiece::Kind::kText) {
      text += piece.text;
      is_at_turn_start = false;
      continue;
    }
    const bool is_image = piece.kind == TurnPiece::Kind::kImage;
    text += is_image ? settings.image_markup.block : settings.video_markup.block;
    if (is_at_turn_start) text += settings.text_after_leading_image;
  }
  return jinja::Value::text(std::move(text), origin);
}

jinja::Value make_content(const Turn& turn, int origin, const ContentFormat& content_format,
                          const TemplateSettings& settings) {
  return content_format.uses_content_blocks(turn) ? make_content_blocks(turn, origin)
                                                  : make_string_content(turn, origin, settings);
}

/// The names of the reasoning of an answer, in the order of _REASONING_FIELDS of transformers 5.24.
constexpr std::array<std::string_view, 3> kReasoningNames{"reasoning_content", "thinking", "reasoning"};

/// Returns the fields of the message of `turn` besides role and content. Reasoning has the names that
/// _alias_reasoning_fields() of transformers 5.24 gives it, because each template reads one of them.
std::vector<std::pair<std::string, jinja::Value>> make_message_fields(const Turn& turn, int origin) {
  std::vector<std::pair<std::string, jinja::Value>> fields;
  for (const io::TemplateValue& field : turn.fields) {
    fields.emplace_back(field.name, jinja::Value::from_json(nlohmann::ordered_json::parse(field.json), origin));
  }
  const auto find_field = [&](std::string_view name) {
    return std::ranges::find_if(fields, [&](const auto& field) { return field.first == name; });
  };
  for (const std::string_view name : kReasoningNames) {
    if (find_field(name) == fields.end()) continue;
    const jinja::Value reasoning = find_field(name)->second;
    for (const char* const alias : {"thinking", "reasoning_content"}) {
      if (find_field(alias) == fields.end()) fields.emplace_back(alias, reasoning);
    }
    break;
  }
  return fields;
}

}  // namespace

std::vector<TurnPiece> split_at_placeholders(const Turn& turn) {
  const std::string_view text = turn.text;
  std::vector<TurnPiece> pieces;
  bool is_at_turn_start = true;
  size_t pos = 0;
  const auto add_text_piece = [&](size_t end) {
    if (end <= pos) return;
    pieces.push_back({TurnPiece::Kind::kText, text.substr(pos, end - pos)});
    is_at_turn_start = false;
  };
  for (const io::MediaPlaceholder& placeholder : io::find_placeholders(turn)) {
    add_text_piece(placeholder.begin);
    pieces.push_back({placeholder.is_video ? TurnPiece::Kind::kVideo : TurnPiece::Kind::kImage});
    pos = placeholder.begin + kImagePlaceholder.size();
    if (is_at_turn_start) pos += count_line_break_bytes(text.substr(pos));
  }
  add_text_piece(text.size());
  return pieces;
}

bool ContentFormat::uses_content_blocks(const Turn& turn) const {
  switch (turn.role) {
    case Role::kSystem:
      return system_uses_blocks;
    case Role::kUser:
      return user_uses_blocks;
    case Role::kAssistant:
      if (!io::has_answer_fields(turn)) return assistant_uses_blocks;
      return assistant_uses_blocks && called_answer_uses_blocks && !turn.text.empty();
    case Role::kTool:
      return user_uses_blocks && !io::find_placeholders(turn).empty();
    case Role::kDocument:
      throw InternalError("a document has no chat template");
  }
  throw InternalError("unknown role");
}

jinja::Value make_messages(std::span<const Turn> turns, const ContentFormat& content_format,
                           const TemplateSettings& settings) {
  std::vector<jinja::Value> messages;
  for (size_t i = 0; i < turns.size(); ++i) {
    const int origin = static_cast<int>(i);
    const Turn& turn = turns[i];
    std::vector<std::pair<std::string, jinja::Value>> message;
    message.emplace_back("role", jinja::Value::text(get_role_name(turn.role)));
    // Null is not passed on: transformers 5.24 drops the key, because many templates print "None".
    if (turn.has_content) message.emplace_back("content", make_content(turn, origin, content_format, settings));
    for (auto& field : make_message_fields(turn, origin)) message.push_back(std::move(field));
    messages.push_back(jinja::Value::dict(std::move(message)));
  }
  return jinja::Value::list(std::move(messages));
}

}  // namespace vlmtrain::text

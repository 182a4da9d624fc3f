#include "text/chat_messages.h"

#include <string>
#include <string_view>
#include <utility>

#include "text/media_marks.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {
namespace {

const char* name_of(Role role) {
  switch (role) {
    case Role::kSystem:
      return "system";
    case Role::kUser:
      return "user";
    case Role::kAssistant:
      return "assistant";
  }
  throw InternalError("unknown role");
}

jinja::Value kind(const char* type) {
  return jinja::Value::text(type, kKindOfBlock);
}

jinja::Value block(const char* type) {
  return jinja::Value::dict({{"type", kind(type)}});
}

jinja::Value text_block(std::string_view text, int origin) {
  return jinja::Value::dict({{"type", kind("text")}, {"text", jinja::Value::text(std::string(text), origin)}});
}

jinja::Value blocks_of(const Turn& turn, int origin) {
  std::vector<jinja::Value> blocks;
  for (const MediaPiece& piece : cut_at_marks(turn)) {
    switch (piece.kind) {
      case MediaPiece::Kind::kImage:
        blocks.push_back(block("image"));
        break;
      case MediaPiece::Kind::kVideo:
        blocks.push_back(block("video"));
        break;
      case MediaPiece::Kind::kText:
        blocks.push_back(text_block(piece.text, origin));
        break;
    }
  }
  if (blocks.empty()) blocks.push_back(text_block("", origin));
  return jinja::Value::list(std::move(blocks));
}

jinja::Value string_of(const Turn& turn, int origin, const TemplateSettings& settings) {
  std::string whole;
  bool opening = true;
  for (const MediaPiece& piece : cut_at_marks(turn)) {
    if (piece.kind == MediaPiece::Kind::kText) {
      whole += piece.text;
      opening = false;
      continue;
    }
    const bool is_image = piece.kind == MediaPiece::Kind::kImage;
    whole += is_image ? settings.image.block : settings.video.block;
    if (opening) whole += settings.after_image;
  }
  return jinja::Value::text(std::move(whole), origin);
}

}  // namespace

bool ContentForm::blocks_of(Role role) const {
  if (role == Role::kSystem) return blocks_of_system;
  return role == Role::kUser ? blocks_of_user : blocks_of_assistant;
}

jinja::Value messages_of(std::span<const Turn> turns, const ContentForm& form, const TemplateSettings& settings) {
  std::vector<jinja::Value> messages;
  for (size_t i = 0; i < turns.size(); ++i) {
    const int origin = static_cast<int>(i);
    const Turn& turn = turns[i];
    messages.push_back(jinja::Value::dict(
        {{"role", jinja::Value::text(name_of(turn.role))},
         {"content", form.blocks_of(turn.role) ? blocks_of(turn, origin) : string_of(turn, origin, settings)}}));
  }
  return jinja::Value::list(std::move(messages));
}

}  // namespace vlmtrain::text

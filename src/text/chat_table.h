#pragma once

#include <span>
#include <string_view>

#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::text {

/// What is written around a turn's text.
struct Frame {
  std::string_view before;
  std::string_view before_image;  ///< instead of `before` where the text begins with an image
  std::string_view after;
};

enum class ImagePlace { kInPlace, kFirst };
enum class SystemPlace {
  kOwnTurn,     ///< a turn of its own
  kInsideUser,  ///< between the first user turn's frame and its text
};

/// A template's strings. An assistant turn is `generation_prompt`, `answer_begin`, text, `answer_end`, `answer_after`;
/// labels are the middle three.
struct ChatTemplate::Table {
  std::string_view name;
  std::string_view opening;         ///< once, before all turns
  std::string_view default_system;  ///< the system text where the conversation has none; empty: no system turn
  SystemPlace system_place;
  Frame system;
  Frame user;
  std::string_view generation_prompt;
  std::string_view answer_begin;
  std::string_view answer_end;
  std::string_view answer_after;
  std::string_view end_of_turn;
  ImagePlace image_place;
  std::string_view image_text;
};

/// All templates, by name in alphabetical order.
std::span<const ChatTemplate::Table> chat_tables();

}  // namespace vlmtrain::text

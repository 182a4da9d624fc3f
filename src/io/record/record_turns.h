#pragma once

#include <nlohmann/json_fwd.hpp>

#include <string>
#include <vector>

#include "io/record/content_blocks.h"
#include "io/record/record_keys.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Returns the list of turns of a record: "messages", else "conversations". Throws data_error if
/// there is neither.
const nlohmann::json& find_turns(const nlohmann::json& record);

/// Appends one turn to `turns` and its media to `media`. Placeholders are added to the text for
/// media without one. Throws data_error for a turn that cannot be used.
void read_turn(const nlohmann::json& value, ConversationMedia& media, RecordKeyChecker& key_checker,
               std::vector<Turn>& turns);

/// Returns the system text of a record. `system` is a text, a number, a list of content blocks, or
/// a list of texts, which are joined as lines.
std::string read_system(const nlohmann::json& system, ConversationMedia& media, RecordKeyChecker& key_checker);

/// Throws data_error if a turn of the assistant has an image or a video.
void refuse_media_in_answers(const std::vector<Turn>& turns);

/// Throws data_error unless user and assistant alternate after an optional system turn. REQUIRES:
/// `turns` is not empty.
void check_alternation(const std::vector<Turn>& turns);

/// Adds notices about texts that other trainers interpret and this one reads as text: image
/// placeholders in other spellings (`<image 1>`, `<IMAGE>`, `<img>`), and coordinates in the
/// formats of Qwen-VL, InternVL and Molmo, which do not match an image that is resized.
void add_placeholder_notices(const std::vector<Turn>& turns, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

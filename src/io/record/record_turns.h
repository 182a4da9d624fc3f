#pragma once

#include <string>
#include <vector>

#include "io/record/content_blocks.h"
#include "io/record/record_keys.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Returns the list of turns in a record: "messages", else "conversations". Throws data_error if
/// the record has neither, or if the list is empty or not a list.
const RecordJson& find_turns(const RecordJson& record);

/// Parses one turn and appends it to `turns`, and its media to `media`. For media without a
/// placeholder in the text, adds one. Throws data_error for a turn that cannot be used.
void read_turn(const RecordJson& turn_json, ConversationMedia& media, RecordKeyChecker& key_checker,
               std::vector<Turn>& turns);

/// Returns the system text of a record. `system_json` is a string, a number, a list of content
/// blocks, or a list of strings, which become lines. Media are added to `media` as for the turn
/// with index 0. Throws data_error for other values.
std::string read_system_text(const RecordJson& system_json, ConversationMedia& media, RecordKeyChecker& key_checker);

/// Throws data_error if a turn of the assistant has a placeholder of an image or a video.
void check_no_media_in_answers(const std::vector<Turn>& turns);

/// Adds notices about texts that other trainers interpret but this one learns as they are: image
/// placeholders in other spellings (`<image 1>`, `<IMAGE>`, `<img>`) in turns of the user, and
/// unless `are_coordinates_read`, coordinates in the formats of Qwen-VL, InternVL and Molmo, which do
/// not match a resized image.
void add_placeholder_notices(const std::vector<Turn>& turns, bool are_coordinates_read, std::vector<Notice>& notices);

}  // namespace vlmtrain::io

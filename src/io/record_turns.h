#pragma once

#include <nlohmann/json.hpp>

#include <string>
#include <vector>

#include "io/content_blocks.h"
#include "io/record_keys.h"
#include "vlmtrain/io/conversation.h"

namespace vlmtrain::io {

/// Returns the list of turns of a record, "messages" before "conversations". data_error without one.
const nlohmann::json& find_turns(const nlohmann::json& record);

/// Appends a turn to `turns`, with marks for its media, and adds the places of marks to `media`. data_error for a turn
/// that cannot be used.
void read_turn(const nlohmann::json& value, ConversationMedia& media, RecordKeyChecker& key_checker,
               std::vector<Turn>& turns);

/// Returns the system text of a record: a text, a number, a list of texts, which are lines, or a list of content
/// blocks.
std::string read_system(const nlohmann::json& system, ConversationMedia& media, RecordKeyChecker& key_checker);

/// Throws where an assistant's turn has an image or a video.
void refuse_media_in_answers(const std::vector<Turn>& turns);

/// Throws unless user and assistant alternate after an optional system turn. REQUIRES: there is a turn.
void check_alternation(const std::vector<Turn>& turns);

}  // namespace vlmtrain::io

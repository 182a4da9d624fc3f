#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>

#include "io/record/media_slots.h"
#include "io/record/record_keys.h"

namespace vlmtrain::io {

/// The media of a conversation.
struct ConversationMedia {
  MediaSlots images{kImages};
  MediaSlots videos{kVideos};

  /// Adds slots for the placeholders of images and videos in `text` (MediaSlots).
  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  /// Adjusts the offsets of a turn after an insertion of `bytes` at its start.
  void shift_placeholders(size_t turn, size_t bytes);
};

/// Position and role of a turn that is being read.
struct TurnContext {
  size_t index;    ///< in the conversation, from 0
  bool is_answer;  ///< the assistant's
};

/// Returns the text of a turn's content: a string, a number or a list of content blocks. Blocks
/// with media become placeholders, whose slots are added to `media`. Throws data_error for other
/// values.
std::string read_content(const nlohmann::json& content, const TurnContext& turn, ConversationMedia& media,
                         RecordKeyChecker& key_checker);

/// Returns true if a frame rate of the data applies to a video: a list of frames, or a path that
/// may be a folder of frames. Video files and bytes have their own frame rate.
bool uses_frame_rate(const MediaRef& video);

/// Sets the frame rate of each such video in `media` from the record, turn or block `object`: one
/// number, or a list with one for each video. Throws data_error for invalid or contradictory
/// values.
void set_frame_rates(const nlohmann::json& object, std::vector<MediaRef>& media);

}  // namespace vlmtrain::io

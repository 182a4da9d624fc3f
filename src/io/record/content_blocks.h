#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "io/record/media_slots.h"
#include "io/record/record_keys.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::io {

/// The media of a conversation, collected turn by turn.
struct ConversationMedia {
  MediaSlots images{kImageKind};
  MediaSlots videos{kVideoKind};

  /// Adds slots for the placeholders of images and videos in `text`, which begins at byte `begin`
  /// of the turn with index `turn`.
  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  /// Adjusts the offsets of placeholders after `bytes` bytes were inserted at the start of a turn's
  /// text.
  void shift_placeholders(size_t turn, size_t bytes);
};

/// Position and role of a turn that is being read.
struct TurnContext {
  size_t index;    ///< in the conversation, from 0
  bool is_answer;  ///< true for a turn of the assistant
};

/// Returns the text of a turn's content: a string, a number, a boolean or a list of content blocks.
/// Blocks with media become placeholders in the text, and their slots are added to `media`. Keys of
/// blocks are checked with `key_checker`. Throws data_error for other values and invalid blocks.
std::string read_content_text(const RecordJson& content, const TurnContext& turn, ConversationMedia& media,
                              RecordKeyChecker& key_checker);

/// Returns true if a frame rate in the record applies to a video: a list of frames, or a path
/// without the extension of a video file, which may be a folder of frames. Video files and bytes
/// contain their frame rate.
bool uses_frame_rate(const MediaRef& video);

/// Sets MediaRef::fps of each video in `media` for which uses_frame_rate(). The rate is under
/// "fps", "sample_fps" or "video_fps" of `object`, a record, turn or block: one number, or a list
/// with one per video. Throws data_error for invalid or contradictory values.
void set_frame_rates(const RecordJson& object, std::vector<MediaRef>& media);

}  // namespace vlmtrain::io

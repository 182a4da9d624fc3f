#pragma once

#include <nlohmann/json.hpp>

#include <cstddef>
#include <string>
#include <string_view>

#include "io/record/media_slots.h"
#include "io/record/record_keys.h"

namespace vlmtrain::io {

/// The places of all that is not text.
struct ConversationMedia {
  MediaSlots images{kImages};
  MediaSlots videos{kVideos};

  void add_text_placeholders(std::string_view text, size_t turn, size_t begin);
  void shift_placeholders(size_t turn, size_t bytes);
};

/// A turn that is being read.
struct TurnContext {
  size_t index;    ///< in the conversation, from 0
  bool is_answer;  ///< the assistant's
};

/// Returns the text of a turn's content, a string, a number or a list of content blocks, with marks for the media of
/// blocks, and adds the places of marks to `media`. data_error where it is none of these.
std::string read_content(const nlohmann::json& content, const TurnContext& turn, ConversationMedia& media,
                         RecordKeyChecker& key_checker);

/// Whether a frame rate of the data applies to a video: a list of frames, or a path that may be a folder of them. Files
/// and bytes of videos have their own.
bool uses_frame_rate(const MediaRef& video);

/// Gives each such video among `media` the frame rate of the record, turn or block `object`: a number, or a list with
/// one for each of several videos.
void set_frame_rates(const nlohmann::json& object, std::vector<MediaRef>& media);

}  // namespace vlmtrain::io

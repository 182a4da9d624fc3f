#pragma once

#include <vector>

#include "vlmtrain/io/record.h"

namespace vlmtrain::io {

/// Throws data_error unless turns follow one another as in a conversation: an optional system turn,
/// then alternately the user and the assistant, with at least one answer. Outputs of tools follow
/// an answer that calls tools, and the assistant follows them. REQUIRES: `turns` is not empty.
void check_turn_order(const std::vector<Turn>& turns);

/// Throws data_error if a turn of the assistant has a placeholder of an image or a video.
void check_no_media_in_answers(const std::vector<Turn>& turns);

}  // namespace vlmtrain::io

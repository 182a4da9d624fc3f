#pragma once

#include <span>
#include <string>
#include <string_view>

#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

struct Expansion {
  std::string_view mark;
  std::string_view text;  ///< in its place
};

/// Puts what stands for each image or video in the model's text in the place of its mark, in order, and moves the
/// answers' spans along. REQUIRES: as many marks as `expansions`.
text::RenderedChat expand_images(const text::RenderedChat& chat, std::span<const Expansion> expansions);

/// The same where all have one mark.
text::RenderedChat expand_images(const text::RenderedChat& chat, std::string_view image_text,
                                 std::span<const std::string> expansions);

}  // namespace vlmtrain::models

#pragma once

#include <span>
#include <string>
#include <string_view>

#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

/// Puts what stands for each image in the model's text in the place of the template's image text, in order, and moves
/// the answers' spans along. REQUIRES: as many image texts as `expansions`.
text::RenderedChat expand_images(const text::RenderedChat& chat, std::string_view image_text,
                                 std::span<const std::string> expansions);

}  // namespace vlmtrain::models

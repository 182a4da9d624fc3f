#pragma once

#include <span>
#include <string>

#include "vlmtrain/text/chat_template.h"

namespace vlmtrain::models {

/// Puts what stands for each image or video in the model's text in its place, in order, and moves the answers' spans
/// along. REQUIRES: no more `expansions` than the chat has media; further ones stay as they are.
text::RenderedChat expand_images(const text::RenderedChat& chat, std::span<const std::string> expansions);

}  // namespace vlmtrain::models

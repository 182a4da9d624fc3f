#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "models/idefics3/image_processor.h"

namespace vlmtrain::models::idefics3 {

/// How many tokens the text of images or of a video is (models/idefics3/image_text.h, video_text.h), image tokens
/// included.
///
/// Exact where `folder` has a tokenizer.json. Else each run of line breaks is one token, and so is each marker such as
/// `<row_1_col_1>`, but for those that an added_tokens.json does not list: they have one for each of their words,
/// digits and punctuation marks, as all other text has. That is what the tokenizers of SmolVLM do: 256M and 500M have
/// tokens for all markers, 2.2B spells them out.
int64_t count_tokens(std::string_view text, const std::filesystem::path& folder);

/// The same of the text of an image.
int64_t count_image_text(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

}  // namespace vlmtrain::models::idefics3

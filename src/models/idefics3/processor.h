#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "models/idefics3/config.h"
#include "models/idefics3/image_processor.h"
#include "models/idefics3/video_processor.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::idefics3 {

/// Returns the text of an image: for each cell `<fake_token_around_image><row_r_col_c>` and its
/// image tokens, a line break after each row and one more after the last; then for the full image
/// `<fake_token_around_image><global-img>`, its image tokens and `<fake_token_around_image>`. An
/// image without splitting has the last part only.
std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile);

/// Returns the number of tokens of the text of images or a video, image tokens included. Exact if
/// `folder` has a tokenizer.json. Otherwise estimated as SmolVLM's tokenizers count: each word,
/// digit, punctuation mark and run of line breaks is one token. A marker such as `<row_1_col_1>` is
/// one token if `folder` has no added_tokens.json or if that file lists it (256M and 500M list all
/// markers, 2.2B does not).
int64_t count_tokens(std::string_view text, const std::filesystem::path& folder);

/// Returns count_tokens() of format_image_text().
int64_t count_image_text_tokens(TileGrid grid, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

/// Returns the processor of Idefics3 and SmolVLM (transformers' Idefics3Processor and
/// SmolVLMProcessor). Each image becomes several tiles, each frame of a video one tile. Without
/// `videos` it does not support videos. Throws UserError (kBadData) if the tokenizer does not match
/// `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const std::optional<VideoSettings>& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::idefics3

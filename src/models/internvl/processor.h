#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "models/internvl/config.h"
#include "models/internvl/image_processor.h"
#include "vlmtrain/models/processor.h"

namespace vlmtrain::models::internvl {

inline constexpr std::string_view kImageToken = "<IMG_CONTEXT>";  ///< its embedding is replaced by an image feature

/// Returns the text of an image: `<img>`, kImageToken for each image token of all tiles, `</img>`.
std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile);

/// Returns the text of a video: one line `Frame1: <img>…</img>` per frame.
std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile);

/// Returns the number of tokens of format_video_text(). Exact if `folder` has a tokenizer.json;
/// otherwise counted as Qwen's tokenizers split it: one token per word, digit, punctuation mark and
/// line break.
int64_t count_video_text_tokens(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

/// Returns the processor of InternVL (transformers' InternVLProcessor). Each image becomes one or
/// several tiles, each frame of a video one tile. Throws UserError (kBadData) if the tokenizer does
/// not match `config`.
std::unique_ptr<Processor> make_processor(const Config& config, const ImageProcessor& images,
                                          const VideoSettings& videos, text::Tokenizer tokenizer,
                                          text::ChatTemplate chat_template, const ProcessorSettings& settings);

}  // namespace vlmtrain::models::internvl

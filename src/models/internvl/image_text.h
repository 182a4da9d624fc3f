#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

namespace vlmtrain::models::internvl {

inline constexpr std::string_view kImageToken = "<IMG_CONTEXT>";  ///< takes a feature

/// What stands for a picture of so many tiles: `<img>`, the tokens of all tiles, `</img>`.
std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile);

/// What stands for a video: `Frame1: <img>…</img>` and so on, a line each.
std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile);

/// How many tokens the text of a video is. Exact where `folder` has a tokenizer.json; else as Qwen's tokenizers have
/// it, a token for each word, digit, mark and line break.
int64_t count_video_text(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder);

}  // namespace vlmtrain::models::internvl

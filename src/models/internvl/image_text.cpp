#include "models/internvl/image_text.h"

#include <fmt/format.h>

#include "vlmtrain/text/read_tokenizer.h"

namespace vlmtrain::models::internvl {

std::string format_image_text(int64_t tiles, int64_t image_tokens_per_tile) {
  std::string text = "<img>";
  for (int64_t i = 0; i < tiles * image_tokens_per_tile; ++i) text += kImageToken;
  return text + "</img>";
}

std::string format_video_text(int64_t frames, int64_t image_tokens_per_tile) {
  const std::string frame = format_image_text(1, image_tokens_per_tile);
  std::string text;
  for (int64_t i = 1; i <= frames; ++i) text += fmt::format("{}Frame{}: {}", i == 1 ? "" : "\n", i, frame);
  return text;
}

int64_t count_video_text(int64_t frames, int64_t image_tokens_per_tile, const std::filesystem::path& folder) {
  const auto tokenizer = folder / "tokenizer.json";
  if (std::filesystem::exists(tokenizer)) {
    return std::ssize(text::read_tokenizer(folder).encode(format_video_text(frames, image_tokens_per_tile)).ids);
  }
  constexpr int64_t kFrameMarkerTokens = 5;  // "Frame", ":", " ", "<img>", "</img>"
  int64_t tokens = frames * (kFrameMarkerTokens + image_tokens_per_tile) + frames - 1;
  for (int64_t i = 1; i <= frames; ++i) tokens += std::ssize(std::to_string(i));
  return tokens;
}

}  // namespace vlmtrain::models::internvl

#include "models/idefics3/image_text.h"

#include <fmt/format.h>

#include "vlmtrain/text/conversation.h"

namespace vlmtrain::models::idefics3 {

namespace {

constexpr std::string_view kFakeToken = "<fake_token_around_image>";
constexpr std::string_view kGlobalImage = "<global-img>";

std::string repeat(std::string_view text, int64_t times) {
  std::string result;
  for (int64_t i = 0; i < times; ++i) result += text;
  return result;
}

}  // namespace

std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile) {
  const std::string tile = repeat(text::kImagePlaceholder, image_tokens_per_tile);
  std::string text;
  for (int64_t row = 1; row <= grid.rows; ++row) {
    for (int64_t column = 1; column <= grid.columns; ++column) {
      text += fmt::format("{}<row_{}_col_{}>{}", kFakeToken, row, column, tile);
    }
    text += '\n';
  }
  if (grid.is_split()) text += '\n';
  return text + fmt::format("{}{}{}{}", kFakeToken, kGlobalImage, tile, kFakeToken);
}

}  // namespace vlmtrain::models::idefics3

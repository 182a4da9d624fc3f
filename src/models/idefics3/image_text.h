#pragma once

#include <cstdint>
#include <string>

#include "models/idefics3/image_processor.h"

namespace vlmtrain::models::idefics3 {

/// What stands for an image in the model's text: for each cell `<fake_token_around_image><row_r_col_c>` and its image
/// tokens, a line break after each row and one more after the last; then the whole picture as
/// `<fake_token_around_image><global-img>`, its image tokens, `<fake_token_around_image>`. An image that is not split
/// is the whole picture alone.
std::string format_image_text(TileGrid grid, int64_t image_tokens_per_tile);

}  // namespace vlmtrain::models::idefics3

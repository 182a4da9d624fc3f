#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

/// All of it, as a list for a cache or another process.
inline nlohmann::json to_json_array(const ShrinkInfo& shrunk) {
  return {shrunk.tokens,       shrunk.pixels,           shrunk.tokens_after,
          shrunk.pixels_after, shrunk.image_max_pixels, shrunk.frame_max_pixels};
}

/// What to_json_array() made; throws nlohmann::json::exception for anything else.
inline ShrinkInfo parse_shrink_info(const nlohmann::json& numbers) {
  return {.tokens = numbers.at(0),
          .pixels = numbers.at(1),
          .tokens_after = numbers.at(2),
          .pixels_after = numbers.at(3),
          .image_max_pixels = numbers.at(4),
          .frame_max_pixels = numbers.at(5)};
}

}  // namespace vlmtrain::data

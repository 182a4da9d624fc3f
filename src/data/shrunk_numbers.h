#pragma once

#include <nlohmann/json.hpp>

#include "vlmtrain/data/sample.h"

namespace vlmtrain::data {

/// All of it, as a list for a cache or another process.
inline nlohmann::json numbers_of(const Shrunk& shrunk) {
  return {shrunk.tokens,      shrunk.pixels,           shrunk.tokens_left,
          shrunk.pixels_left, shrunk.image_max_pixels, shrunk.frame_max_pixels};
}

/// What numbers_of() made; throws nlohmann::json::exception for anything else.
inline Shrunk shrunk_in(const nlohmann::json& numbers) {
  return {.tokens = numbers.at(0),
          .pixels = numbers.at(1),
          .tokens_left = numbers.at(2),
          .pixels_left = numbers.at(3),
          .image_max_pixels = numbers.at(4),
          .frame_max_pixels = numbers.at(5)};
}

}  // namespace vlmtrain::data

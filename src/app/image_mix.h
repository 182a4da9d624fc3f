#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace vlmtrain::app {

/// Samples with so many images, and their share of all.
struct ImageMixComponent {
  int64_t images = 0;
  double share = 0;  ///< greater than 0; all of a mix sum up to 1
};

/// What `--mix 1:0.5,2:0.25,3:0.25` says, by images, ascending; shares that do not sum up to 1 are taken in proportion.
/// Throws UserError (kUsage) for anything else, and where a number of images stands twice.
std::vector<ImageMixComponent> parse_image_mix(const std::string& text);

}  // namespace vlmtrain::app

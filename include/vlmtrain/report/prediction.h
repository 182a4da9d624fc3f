#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "vlmtrain/io/medium.h"

namespace vlmtrain::report {

/// A mask as the model drew it for the right answer.
struct PredictedMask {
  std::string structure{};  ///< what it shows; may be empty
  double dice = 0;
  std::string overlay{};  ///< make_overlay_uri()
};

/// What the model answered to a sample after a step, a line of predictions.jsonl.
struct Prediction {
  int64_t step = 0;
  std::string id{};
  std::string task{};  ///< empty: none
  std::string question{};
  std::string expected{};
  std::string answer{};
  std::vector<std::string> images{};    ///< thumbnails as data URIs
  std::vector<std::string> captions{};  ///< of volumes among the images, by place; empty: there is no volume
  std::vector<PredictedMask> masks{};

  /// {"step", "id", "task", "question", "expected", "given", "images", and where there are volumes, "captions", of
  /// masks, "masks": [{"structure", "dice", "overlay"}]}
  std::string to_json_line() const;
};

/// Pixels of the longest side of a thumbnail; a smaller picture stays as it is.
inline constexpr int64_t kThumbnailPixels = 160;

/// A picture, uint8 [3, height, width] on the CPU, small and as "data:image/jpeg;base64,…".
std::string make_thumbnail_uri(const at::Tensor& image);

/// The same of a JPEG, PNG or WebP file; of a volume its three middle slices side by side, the longest axis in so many
/// pixels. Throws as image::decode_image and image::render_scan_slices do.
std::string make_thumbnail_uri(const io::MediaRef& image);

/// Larger than a thumbnail, so that contours can be told apart.
inline constexpr int64_t kOverlayPixels = 240;

/// The picture, small, with the mask `predicted` filled in orange and the outline of the true one in green. Both are
/// uint8 [height, width] of the picture's size.
std::string make_overlay_uri(const at::Tensor& image, const at::Tensor& predicted, const at::Tensor& truth);

}  // namespace vlmtrain::report

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/points.h"
#include "vlmtrain/io/record.h"

namespace vlmtrain::report {

/// A mask that the model predicted for a sample with teacher forcing.
struct PredictedMask {
  std::string structure{};    ///< name of the structure; may be empty
  double dice = 0;            ///< Dice coefficient, 0 to 1
  std::string overlay_uri{};  ///< from make_overlay_uri()
};

/// The boxes in an answer.
struct PredictedBoxes {
  double iou = 0;             ///< mean intersection over union of the true boxes, 0 to 1
  std::string overlay_uri{};  ///< from make_box_overlay_uri()
};

/// The model's answer to a sample after a step, a line of predictions.jsonl.
struct Prediction {
  int64_t step = 0;
  std::string id{};
  std::string task{};  ///< empty if the sample has none
  std::string question{};
  std::string expected_answer{};
  std::string answer{};
  std::vector<std::string> thumbnail_uris{};  ///< data URIs, by image
  std::vector<std::string>
      volume_captions{};  ///< captions of `thumbnail_uris` that show volumes, by image; empty without volumes
  std::vector<PredictedMask> masks{};
  std::optional<PredictedBoxes> boxes{};

  /// Returns {"step", "id", "task", "question", "expected", "answer", "images"}, for volumes
  /// "captions", for masks "masks": [{"structure", "dice", "overlay"}], for boxes "boxes": {"iou",
  /// "overlay"}.
  std::string to_json_line() const;
};

/// Pixels of the longest side of a thumbnail. Smaller images keep their size.
inline constexpr int64_t kMaxThumbnailSide = 160;

/// Returns a thumbnail of an image, uint8 [3, height, width] on the CPU, as a data URI
/// ("data:image/jpeg;base64,…").
std::string make_thumbnail_uri(const at::Tensor& image);

/// Returns a thumbnail of an image file, or the three central slices of a volume side by
/// side, with kMaxThumbnailSide for the longest axis. Throws the exceptions of
/// image::decode_image() and image::render_scan_slices().
std::string make_thumbnail_uri(const io::MediaRef& image);

/// Pixels of the longest side of an overlay. Larger than a thumbnail, so that contours can be
/// distinguished.
inline constexpr int64_t kMaxOverlaySide = 240;

/// Returns an overlay as a data URI: the image with the mask `predicted` filled in orange and the
/// outline of `truth` in green. `image` is uint8 [3, height, width]; the masks are uint8 [height,
/// width]. REQUIRES: all are on the CPU and have the same size.
std::string make_overlay_uri(const at::Tensor& image, const at::Tensor& predicted, const at::Tensor& truth);

/// Returns an image, uint8 [3, height, width] on the CPU, with the boxes `predicted` in orange and
/// `truth` in green as a data URI. Boxes are in pixels of the image.
std::string make_box_overlay_uri(const at::Tensor& image, const std::vector<image::Box>& predicted,
                                 const std::vector<image::Box>& truth);

}  // namespace vlmtrain::report

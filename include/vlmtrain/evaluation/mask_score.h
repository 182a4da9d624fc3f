#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/masks.h"
#include "vlmtrain/image/decode.h"

namespace vlmtrain::evaluation {

/// How well a predicted mask is the true one.
struct MaskScore {
  double iou;   ///< pixels in both over pixels in either
  double dice;  ///< twice the pixels in both over the sum of the pixels of each
  /// The 95th percentile of the distances from the edge of one mask to the other's, the larger of both directions, in
  /// pixels; nothing where a mask is empty.
  std::optional<double> hausdorff95;
  bool is_truth_empty = false;       ///< there is nothing to draw
  bool is_prediction_empty = false;  ///< nothing is predicted
};

/// Of masks uint8 [height, width] on the CPU, of equal size; anything but 0 belongs to a mask. Where nothing is there
/// and nothing is predicted, IoU and Dice are 1; where one of both is empty, they are 0.
///
/// The Hausdorff distance is MONAI's (1.6, compute_hausdorff_distance with percentile=95): edges are the pixels with
/// one of four neighbours outside of their mask, beyond the picture's border being outside; the percentile is linear
/// between the two nearest ranks. MONAI computes ranks in float32, which moves its result by some 1e-5.
///
/// Time is linear in the pixels; thread-safe.
MaskScore score_mask(const at::Tensor& predicted, const at::Tensor& truth);

/// What adds up scores of masks; each number is the mean over the masks that have it.
struct MaskScoreSums {
  int64_t masks = 0;
  double iou_sum = 0, dice_sum = 0;
  int64_t num_with_hausdorff95 = 0;  ///< masks of which neither is empty
  double hausdorff95_sum = 0;
  int64_t empty_truths = 0;       ///< masks with nothing to draw: Dice and IoU are 1 or 0
  int64_t empty_predictions = 0;  ///< masks of which nothing is predicted; together with the above both count

  void add(const MaskScore& score);
  void merge(const MaskScoreSums& other);
  double iou() const { return masks > 0 ? iou_sum / static_cast<double>(masks) : 0; }
  double dice() const { return masks > 0 ? dice_sum / static_cast<double>(masks) : 0; }
  /// Nothing where no mask has one.
  std::optional<double> hausdorff95() const;
};

/// Scores of a data set's masks, together, by task and by what the masks are of.
class MaskScores {
 public:
  /// An empty name is no group: the score counts in the total alone.
  void add(const MaskScore& score, const std::string& task, const std::string& structure);
  /// Adds those of another part of the data set.
  void merge(const MaskScores& other);

  const MaskScoreSums& total() const { return total_; }
  const std::map<std::string, MaskScoreSums>& by_task() const { return by_task_; }
  const std::map<std::string, MaskScoreSums>& by_structure() const { return by_structure_; }

 private:
  MaskScoreSums total_;
  std::map<std::string, MaskScoreSums> by_task_, by_structure_;
};

/// A mask as the model drew it, beside the true one: uint8 [height, width] of 0 and 1, of their picture's size.
struct MaskPrediction {
  std::string structure{};  ///< what it shows; may be empty
  int64_t image = 0;        ///< which of the record's pictures it lies in
  at::Tensor predicted{};
  at::Tensor truth{};
  double dice = 0;
};

/// The mask of a picture of size `image_size` in logits fp32 [height, width] over a square of `side` pixels, of which
/// it filled `filled`: brought to the square's size, cut, and brought to the picture's, each time bilinearly, and 1
/// where the logit is above 0 (as SAM's postprocess_masks).
at::Tensor postprocess_mask(const at::Tensor& logits, int64_t side, const data::ValidRegion& filled,
                            image::ImageSize image_size);

/// A window of a mask's rows and columns.
struct Window {
  int64_t top, left, height, width;
};

/// Of each pixel of the window, row by row, the square of the distance in pixels to the nearest one of `points` (uint8
/// [height, width], contiguous, on the CPU), exactly and in time linear in the pixels.
/// Source: Felzenszwalb and Huttenlocher, Distance Transforms of Sampled Functions, 2012.
/// REQUIRES: a point in the window.
std::vector<int64_t> compute_squared_distances(const at::Tensor& points, const Window& window);

}  // namespace vlmtrain::evaluation

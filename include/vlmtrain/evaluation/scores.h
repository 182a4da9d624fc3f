#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/image/size.h"
#include "vlmtrain/io/records.h"

namespace vlmtrain::data {
struct ValidRegion;
}

namespace vlmtrain::evaluation {

/// The agreement of a predicted mask with the true one.
struct MaskScore {
  double iou;   ///< intersection over union, in pixels
  double dice;  ///< 2 · intersection / (predicted + true pixels)
  /// The 95th percentile of the distances in pixels from the edge of one mask to that of the other,
  /// the larger of both directions; nullopt if a mask is empty.
  std::optional<double> hausdorff95;
  bool is_truth_empty = false;       ///< the true mask has no pixel
  bool is_prediction_empty = false;  ///< the predicted mask has no pixel
};

/// Scores masks uint8 [height, width] on the CPU of equal size; nonzero pixels belong to a mask. If
/// both are empty, IoU and Dice are 1; if only one is, they are 0.
///
/// The Hausdorff distance is MONAI's (1.6, compute_hausdorff_distance with percentile=95): the edge
/// of a mask consists of its pixels with one of four neighbors outside the mask or the image; the
/// percentile interpolates linearly between the two nearest ranks. MONAI computes ranks in float32,
/// which changes its result by about 1e-5.
///
/// Linear time in the number of pixels. Thread-safe.
MaskScore score_mask(const at::Tensor& predicted_mask, const at::Tensor& true_mask);

/// Sums of mask scores and their means, each over the masks that have the score. The mean of no
/// masks is 0.
struct MaskScoreSums {
  int64_t num_masks = 0;  ///< masks that were added, also empty ones
  double iou_sum = 0, dice_sum = 0;
  int64_t num_masks_with_hausdorff95 = 0;  ///< masks with a nonempty truth and prediction
  double hausdorff95_sum = 0;
  int64_t num_empty_truths = 0;       ///< masks with an empty truth, whose Dice and IoU are 0 or 1
  int64_t num_empty_predictions = 0;  ///< masks with an empty prediction; also counted in num_empty_truths if both are

  void add(const MaskScore& score);
  void merge(const MaskScoreSums& other);
  double iou() const { return num_masks > 0 ? iou_sum / static_cast<double>(num_masks) : 0; }
  double dice() const { return num_masks > 0 ? dice_sum / static_cast<double>(num_masks) : 0; }
  /// Returns the mean; nullopt if no mask has it.
  std::optional<double> hausdorff95() const;
};

/// Mask scores of a data set in total, by task and by structure (the name of the segmented object).
class MaskScores {
 public:
  /// Adds a score to the total and, unless the name is empty, to its task and its structure.
  void add(const MaskScore& score, const std::string& task, const std::string& structure);
  /// Adds the scores of another part of the data set.
  void merge(const MaskScores& other);

  const MaskScoreSums& total() const { return total_; }
  const std::map<std::string, MaskScoreSums>& by_task() const { return by_task_; }
  const std::map<std::string, MaskScoreSums>& by_structure() const { return by_structure_; }

 private:
  MaskScoreSums total_;
  std::map<std::string, MaskScoreSums> by_task_, by_structure_;
};

/// Returns the mask of an image, uint8 [image height, image width] with values 0 and 1. `logits`:
/// fp32 [height, width] for a padded square of `side` by `side` pixels, of which the image covers
/// `valid_region`. Resizes bilinearly to the square, crops the padding, resizes bilinearly to
/// `image_size`, and returns 1 for logits above 0, like postprocess_masks() of SAM.
at::Tensor postprocess_mask(const at::Tensor& logits, int64_t side, const data::ValidRegion& valid_region,
                            image::ImageSize image_size);

/// A rectangle of a mask, in pixels.
struct MaskWindow {
  int64_t top, left;  ///< indices of the first row and column
  int64_t height, width;
};

/// Returns for each pixel of the window, row by row, the squared distance in pixels to the nearest
/// of `points`, the nonzero pixels of uint8 [height, width], contiguous, on the CPU. Exact, in
/// linear time (Felzenszwalb and Huttenlocher, Distance Transforms of Sampled Functions, 2012).
/// REQUIRES: the window has at least one point.
std::vector<int64_t> compute_squared_distances(const at::Tensor& points, const MaskWindow& window);

// Scores of visual question answering as in LLaVA-Med (https://github.com/microsoft/LLaVA-Med,
// llava/eval/run_eval.py): the accuracy of closed questions, and the word recall of open ones.

/// The answer type of a question: a fixed set of answers, or free text.
enum class AnswerType { kClosed, kOpen };

/// Returns the record's answer_type (CLOSED or OPEN, in any case). Without it, questions whose last
/// answer is yes or no are closed.
AnswerType determine_answer_type(const io::Record& record);

/// Normalizes an answer for comparison: lower case, no punctuation (except point and comma within a
/// number), no articles (a, an, the), digits instead of the words none to ten, single spaces.
std::string normalize_answer(std::string_view text);

/// The accuracy of closed questions. An answer is correct if it equals the expected one, both
/// normalized. LLaVA-Med's script is less strict: it requires only that the answer contains the
/// expected one, and ignores wrong answers that contain yes or no.
struct ClosedQuestionScore {
  int64_t num_samples = 0;
  int64_t num_correct = 0;

  /// Adds an answer.
  void add(std::string_view expected, std::string_view prediction);
  double accuracy() const {
    return num_samples > 0 ? static_cast<double>(num_correct) / static_cast<double>(num_samples) : 0;
  }
};

/// The scores of open questions, each the mean over the answers. Recall and precision count
/// normalized words as LLaVA-Med does: a common word counts as often as it occurs in the
/// prediction.
struct OpenQuestionScore {
  int64_t num_samples = 0;
  int64_t num_exact_matches = 0;  ///< predictions equal to the expected answer, both normalized
  double recall_sum = 0, precision_sum = 0, f1_sum = 0;

  /// Adds an answer.
  void add(std::string_view expected, std::string_view prediction);
  double exact_match() const { return mean(static_cast<double>(num_exact_matches)); }
  double recall() const { return mean(recall_sum); }
  double precision() const { return mean(precision_sum); }
  double f1() const { return mean(f1_sum); }

 private:
  double mean(double sum) const { return num_samples > 0 ? sum / static_cast<double>(num_samples) : 0; }
};

}  // namespace vlmtrain::evaluation

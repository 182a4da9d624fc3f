#pragma once

#include <string_view>
#include <vector>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

/// An axis-parallel rectangle in any unit, from (x1, y1) to (x2, y2).
struct Box {
  double x1, y1, x2, y2;

  bool operator==(const Box&) const = default;
};

/// Returns the boxes in an answer, in their order. Formats, with any text between them:
///
///     [x1, y1, x2, y2]               lists, also in JSON ("bbox_2d") and <box>[[…]]</box>
///     (x1,y1),(x2,y2)                Qwen-VL, also between <|box_start|> and <|box_end|>
///     <locY1><locX1><locY2><locX2>   PaliGemma, four digits each
std::vector<Box> parse_boxes(std::string_view answer);

/// Returns intersection over union; 0 if the union is empty. Corners in another order than (x1, y1),
/// (x2, y2) make a box empty.
double compute_box_iou(const Box& a, const Box& b);

// Metrics of the boxes in answers (parse_boxes()). Predicted and expected boxes are matched one to
// one, in descending order of IoU; an expected box without a match counts as IoU 0, and additional
// predicted boxes are ignored. With one box each, as in lmms-eval's RefCOCO (compute_iou and
// ACC@0.5 in tasks/refcoco/utils_rec.py). Do not apply to an expected answer without boxes.

/// Returns the IoU of all expected boxes; the value is their mean.
MetricSum score_box_iou(std::string_view expected, std::string_view prediction);

/// Returns the number of expected boxes whose match has an IoU of at least 0.5; the value is their
/// fraction.
MetricSum score_box_accuracy(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

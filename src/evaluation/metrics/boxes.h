#pragma once

#include <string_view>
#include <vector>

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

}  // namespace vlmtrain::evaluation

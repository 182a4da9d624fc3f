#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "vlmtrain/image/points.h"
#include "vlmtrain/io/record.h"
#include "vlmtrain/models/box_format.h"

namespace vlmtrain::evaluation {

/// The predicted and the true boxes of an answer, in pixels of the decoded image.
struct BoxComparison {
  int64_t image_index = 0;  ///< index in Record::images
  std::vector<image::Box> predicted_boxes{};
  std::vector<image::Box> true_boxes{};
  double iou = 0;  ///< mean of the true boxes, Metric::kBoxIou
};

/// Returns the boxes in an expected and a predicted answer; nothing if the last turn of `record` has
/// no box. `written` is the result of Processor::write_objects(). The boxes of an answer are assumed
/// to be in the image of its first box.
std::optional<BoxComparison> compare_boxes(const io::Record& record, const models::WrittenRecord& written,
                                           std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

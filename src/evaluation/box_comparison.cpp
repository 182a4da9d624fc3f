#include "vlmtrain/evaluation/box_comparison.h"

#include <algorithm>

#include "evaluation/metrics/box_metrics.h"
#include "evaluation/metrics/boxes.h"

namespace vlmtrain::evaluation {

namespace {

std::vector<image::Box> locate_boxes(std::string_view answer, const models::CoordinateMap& map) {
  std::vector<image::Box> boxes;
  for (const Box& box : parse_boxes(answer)) boxes.push_back(map.map(box.x1, box.y1, box.x2, box.y2));
  return boxes;
}

}  // namespace

std::optional<BoxComparison> compare_boxes(const io::Record& record, const models::WrittenRecord& written,
                                           std::string_view expected, std::string_view prediction) {
  const auto object = std::ranges::find_if(record.objects, [&](const io::ObjectMark& mark) {
    return !mark.is_name() && mark.turn_index + 1 == record.turns.size();
  });
  if (object == record.objects.end()) return std::nullopt;
  const models::CoordinateMap& map = written.coordinate_maps.at(static_cast<size_t>(object->image_index));
  BoxComparison comparison{.image_index = object->image_index,
                           .predicted_boxes = locate_boxes(prediction, map),
                           .true_boxes = locate_boxes(expected, map)};
  if (comparison.true_boxes.empty()) return std::nullopt;
  comparison.iou = score_box_iou(expected, prediction).value().value_or(0);
  return comparison;
}

}  // namespace vlmtrain::evaluation

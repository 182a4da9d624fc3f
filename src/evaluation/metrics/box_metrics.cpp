#include "evaluation/metrics/box_metrics.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "evaluation/metrics/boxes.h"

namespace vlmtrain::evaluation {

namespace {

/// Least IoU of a correct box, as in RefCOCO and Pascal VOC.
constexpr double kMinCorrectIou = 0.5;

/// An expected box with a predicted one.
struct BoxPair {
  double iou;
  size_t expected_index, predicted_index;
};

/// Returns the pairs of boxes that overlap, by descending IoU.
std::vector<BoxPair> list_overlapping_pairs(const std::vector<Box>& expected, const std::vector<Box>& predicted) {
  std::vector<BoxPair> pairs;
  for (size_t i = 0; i < expected.size(); ++i) {
    for (size_t j = 0; j < predicted.size(); ++j) {
      const double iou = compute_box_iou(expected[i], predicted[j]);
      if (iou > 0) pairs.push_back({iou, i, j});
    }
  }
  std::ranges::stable_sort(pairs, std::greater<>(), &BoxPair::iou);
  return pairs;
}

/// Returns the IoU of each expected box with its match; 0 without one.
std::vector<double> match_boxes(const std::vector<Box>& expected, const std::vector<Box>& predicted) {
  std::vector<double> ious(expected.size(), 0);
  std::vector<bool> is_predicted_box_matched(predicted.size(), false);
  for (const auto& [iou, expected_index, predicted_index] : list_overlapping_pairs(expected, predicted)) {
    if (ious[expected_index] > 0 || is_predicted_box_matched[predicted_index]) continue;
    ious[expected_index] = iou;
    is_predicted_box_matched[predicted_index] = true;
  }
  return ious;
}

MetricSum sum_over_expected_boxes(std::string_view expected, std::string_view prediction,
                                  const std::function<double(double iou)>& score_box) {
  MetricSum sum;
  for (const double iou : match_boxes(parse_boxes(expected), parse_boxes(prediction)))
    sum.add({.sum = score_box(iou), .weight = 1});
  return sum;
}

}  // namespace

MetricSum score_box_iou(std::string_view expected, std::string_view prediction) {
  return sum_over_expected_boxes(expected, prediction, [](double iou) { return iou; });
}

MetricSum score_box_accuracy(std::string_view expected, std::string_view prediction) {
  return sum_over_expected_boxes(expected, prediction, [](double iou) { return iou >= kMinCorrectIou ? 1.0 : 0.0; });
}

}  // namespace vlmtrain::evaluation

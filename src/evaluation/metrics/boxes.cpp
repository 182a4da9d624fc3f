#include "evaluation/metrics/boxes.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <functional>
#include <optional>
#include <vector>

namespace vlmtrain::evaluation {

namespace {

/// A reader of one box format. Each function returns whether it read what it names, and moves
/// forward only then.
class BoxReader {
 public:
  explicit BoxReader(std::string_view text) : text_(text) {}

  bool read_text(std::string_view expected) {
    if (!text_.substr(pos_).starts_with(expected)) return false;
    pos_ += expected.size();
    return true;
  }

  bool read_number(double& number) {
    const auto [end, error] = std::from_chars(text_.data() + pos_, text_.data() + text_.size(), number);
    if (error != std::errc()) return false;
    pos_ = static_cast<size_t>(end - text_.data());
    return true;
  }

  bool read_digits(size_t num_digits, double& number) {
    const std::string_view digits = text_.substr(pos_, num_digits);
    if (digits.size() < num_digits || !std::ranges::all_of(digits, [](char c) { return c >= '0' && c <= '9'; }))
      return false;
    std::from_chars(digits.data(), digits.data() + num_digits, number);
    pos_ += num_digits;
    return true;
  }

  void skip_spaces() { pos_ = std::min(text_.find_first_not_of(" \t\r\n", pos_), text_.size()); }

  size_t pos() const { return pos_; }

 private:
  std::string_view text_;
  size_t pos_ = 0;
};

/// Reads `open`, numbers with commas between them, and `close`. White space may surround numbers.
bool read_numbers(BoxReader& reader, std::string_view open, double* first, size_t count, std::string_view close) {
  if (!reader.read_text(open)) return false;
  for (size_t i = 0; i < count; ++i) {
    reader.skip_spaces();
    if (!reader.read_number(first[i])) return false;
    reader.skip_spaces();
    if (i + 1 < count && !reader.read_text(",")) return false;
  }
  return reader.read_text(close);
}

using BoxParser = std::optional<Box> (*)(BoxReader& reader);

std::optional<Box> parse_list(BoxReader& reader) {
  std::array<double, 4> values{};
  if (!read_numbers(reader, "[", values.data(), values.size(), "]")) return std::nullopt;
  return Box{values[0], values[1], values[2], values[3]};
}

std::optional<Box> parse_corners(BoxReader& reader) {
  std::array<double, 4> values{};
  if (!read_numbers(reader, "(", values.data(), 2, ")")) return std::nullopt;
  reader.skip_spaces();
  if (!reader.read_text(",")) return std::nullopt;
  reader.skip_spaces();
  if (!read_numbers(reader, "(", values.data() + 2, 2, ")")) return std::nullopt;
  return Box{values[0], values[1], values[2], values[3]};
}

std::optional<Box> parse_location_tokens(BoxReader& reader) {
  constexpr size_t kLocationDigits = 4;  // <loc0000> to <loc1023>
  std::array<double, 4> values{};
  for (double& value : values) {
    if (!reader.read_text("<loc") || !reader.read_digits(kLocationDigits, value) || !reader.read_text(">"))
      return std::nullopt;
  }
  return Box{values[1], values[0], values[3], values[2]};
}

constexpr BoxParser kBoxParsers[]{parse_list, parse_corners, parse_location_tokens};

}  // namespace

std::vector<Box> parse_boxes(std::string_view answer) {
  std::vector<Box> boxes;
  while (!answer.empty()) {
    size_t length = 1;
    for (const BoxParser parse : kBoxParsers) {
      BoxReader reader(answer);
      const auto box = parse(reader);
      if (!box) continue;
      boxes.push_back(*box);
      length = reader.pos();
      break;
    }
    answer.remove_prefix(length);
  }
  return boxes;
}

double compute_box_iou(const Box& a, const Box& b) {
  const auto compute_area = [](double x1, double y1, double x2, double y2) {
    return std::max(0.0, x2 - x1) * std::max(0.0, y2 - y1);
  };
  const double intersection =
      compute_area(std::max(a.x1, b.x1), std::max(a.y1, b.y1), std::min(a.x2, b.x2), std::min(a.y2, b.y2));
  const double union_area = compute_area(a.x1, a.y1, a.x2, a.y2) + compute_area(b.x1, b.y1, b.x2, b.y2) - intersection;
  return union_area > 0 ? intersection / union_area : 0;
}

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

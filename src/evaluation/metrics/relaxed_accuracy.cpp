#include "evaluation/metrics/relaxed_accuracy.h"

#include <cmath>
#include <optional>

#include "evaluation/metrics/numbers.h"
#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

namespace {

/// Tolerance of ChartQA, relative to the expected number.
constexpr double kMaxRelativeChange = 0.05;

std::optional<double> parse_number_or_percentage(std::string_view answer) {
  if (!answer.ends_with('%')) return parse_python_float(answer);
  const auto number = parse_python_float(answer.substr(0, answer.find_last_not_of('%') + 1));
  constexpr double kPercent = 100;
  return number ? std::optional(*number / kPercent) : std::nullopt;
}

bool is_relaxed_match(std::string_view expected, std::string_view prediction) {
  const auto expected_number = parse_number_or_percentage(expected);
  const auto predicted_number = parse_number_or_percentage(prediction);
  if (!predicted_number || expected_number.value_or(0) == 0)
    return text::to_python_lower(prediction) == text::to_python_lower(expected);
  return std::abs(*predicted_number - *expected_number) / std::abs(*expected_number) <= kMaxRelativeChange;
}

}  // namespace

MetricSum score_relaxed_accuracy(std::string_view expected, std::string_view prediction) {
  return {.sum = is_relaxed_match(expected, prediction) ? 1.0 : 0.0, .weight = 1};
}

}  // namespace vlmtrain::evaluation

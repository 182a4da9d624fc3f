#include "evaluation/metrics/numeric.h"

#include <cmath>

#include "evaluation/metrics/numbers.h"

namespace vlmtrain::evaluation {

MetricSum score_number(std::string_view expected, std::string_view prediction, double tolerance) {
  const auto expected_number = find_last_number(expected);
  if (!expected_number || !std::isfinite(*expected_number)) return {};
  const auto predicted_number = find_last_number(prediction);
  const double max_difference = *expected_number == 0 ? tolerance : tolerance * std::abs(*expected_number);
  const bool is_close = predicted_number && std::abs(*predicted_number - *expected_number) <= max_difference;
  return {.sum = is_close ? 1.0 : 0.0, .weight = 1};
}

}  // namespace vlmtrain::evaluation

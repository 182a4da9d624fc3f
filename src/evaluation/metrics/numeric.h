#pragma once

#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

/// Returns 1 if the last number of the prediction is close to the last number of the expected
/// answer, else 0: |predicted − expected| <= tolerance · |expected|, or <= tolerance if the expected
/// number is 0. Units and percent signs are ignored. Does not apply to an expected answer without a
/// finite number (find_last_number()).
MetricSum score_number(std::string_view expected, std::string_view prediction, double tolerance);

}  // namespace vlmtrain::evaluation

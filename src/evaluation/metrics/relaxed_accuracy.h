#pragma once

#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

/// Returns 1 for a correct answer by the relaxed accuracy of ChartQA (Masry et al. 2022, arXiv
/// 2203.10244, section 5.1), else 0. If both answers are numbers, the prediction must be within 5 %
/// of the expected one; a trailing percent sign divides a number by 100. Other answers, and those
/// to an expected 0, must be equal except for case. The same as relaxed_correctness() of pix2struct
/// and lmms-eval, except for digits outside ASCII.
MetricSum score_relaxed_accuracy(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

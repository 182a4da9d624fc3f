#pragma once

#include <optional>
#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

/// Returns Python's float(text) with ASCII digits; nullopt where Python raises ValueError. Accepts
/// white space at both ends, underscores between digits, inf and nan.
std::optional<double> parse_python_float(std::string_view text);

/// Returns the last number in a text; nullopt if it has none. A number has ASCII digits, and may
/// have a sign, commas between groups of three digits, a fraction and an exponent. It follows
/// neither a letter, a digit, an underscore nor a point; such a character before a sign makes the
/// sign a dash. Characters outside ASCII are no letters here. As a regular expression of Python with
/// re.ASCII:
///
///     (?<![\w.])[-+]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?
std::optional<double> find_last_number(std::string_view text);

/// Returns 1 if the last number of the prediction is close to the last number of the expected
/// answer, else 0: |predicted − expected| <= tolerance · |expected|, or <= tolerance if the expected
/// number is 0. Units and percent signs are ignored. Does not apply to an expected answer without a
/// finite number (find_last_number()).
MetricSum score_number(std::string_view expected, std::string_view prediction, double tolerance);

/// Returns 1 for a correct answer by the relaxed accuracy of ChartQA (Masry et al. 2022, arXiv
/// 2203.10244, section 5.1), else 0. If both answers are numbers, the prediction must be within 5 %
/// of the expected one; a trailing percent sign divides a number by 100. Other answers, and those
/// to an expected 0, must be equal except for case. The same as relaxed_correctness() of pix2struct
/// and lmms-eval, except for digits outside ASCII.
MetricSum score_relaxed_accuracy(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

#pragma once

#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

/// Returns the normalized Levenshtein similarity of an answer; its mean is ANLS (Biten et al. 2019,
/// Scene Text Visual Question Answering, arXiv 1905.13648): 1 − edits / length of the longer
/// answer, and 0 below 0.5. Both answers are lower case with single spaces, and their lengths are
/// those of the upper-case answers as given, as in lmms-eval 0.7 (api/metrics.py, anls) and the
/// evaluation script of DocVQA. A similarity of exactly 0.5 counts. Two empty answers are equal.
MetricSum score_anls(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

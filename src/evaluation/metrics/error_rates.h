#pragma once

#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

// Error rates as jiwer 4.0 computes them over a corpus: the edit operations of all answers divided
// by the length of all expected answers. An empty expected answer adds its insertions and no
// length.

/// Returns the character error rate: edits and expected characters (code points), without white
/// space at both ends.
MetricSum score_characters(std::string_view expected, std::string_view prediction);

/// Returns the word error rate: edits and expected words, which white space separates. jiwer
/// separates words only at spaces and at runs of at least two white space characters; torchmetrics
/// at all white space, as here.
MetricSum score_words(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

#pragma once

#include <cstdint>
#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

/// Returns the Levenshtein distance: the least number of insertions, deletions and substitutions of
/// one element that turn `a` into `b`. Elements are code points or other 32-bit ids.
///
/// O(a.size() · b.size()) time, O(b.size()) memory, without the common prefix and suffix.
int64_t compute_edit_distance(std::u32string_view a, std::u32string_view b);

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

/// Returns the normalized Levenshtein similarity of an answer; its mean is ANLS (Biten et al. 2019,
/// Scene Text Visual Question Answering, arXiv 1905.13648): 1 − edits / length of the longer
/// answer, and 0 below 0.5. Both answers are lower case with single spaces, and their lengths are
/// those of the upper-case answers as given, as in lmms-eval 0.7 (api/metrics.py, anls) and the
/// evaluation script of DocVQA. A similarity of exactly 0.5 counts. Two empty answers are equal.
MetricSum score_anls(std::string_view expected, std::string_view prediction);

}  // namespace vlmtrain::evaluation

#pragma once

#include <cstdint>
#include <optional>
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

/// Returns the letter, A to H, that an answer to a multiple-choice question selects, such as "(B)",
/// "B.", "B) a cat", "Answer: B" or "the answer is B"; nullopt without such a letter. The same as
/// extract_mcq_answer() of lmms-eval 0.7 (tasks/_task_utils/mcq_extract.py): of all occurrences in
/// the most reliable format, the last one. Lower-case letters do not count.
std::optional<char> find_selected_choice(std::string_view answer);

/// Returns the letter of an expected answer: a letter A to H, alone or followed by `.`, `)`, `:` or
/// `,`, and possibly in parentheses: "B", "(B)", "B. a cat". nullopt for all other answers.
std::optional<char> find_expected_choice(std::string_view answer);

/// Returns 1 if the prediction selects the expected choice, else 0. Does not apply to an expected
/// answer without a choice.
MetricSum score_multiple_choice(std::string_view expected, std::string_view prediction);

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

#pragma once

#include <optional>
#include <string_view>

#include "vlmtrain/evaluation/metrics.h"

namespace vlmtrain::evaluation {

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

}  // namespace vlmtrain::evaluation

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/io/records.h"

namespace vlmtrain::evaluation {

// Scores of visual question answering as in LLaVA-Med (https://github.com/microsoft/LLaVA-Med,
// llava/eval/run_eval.py): the accuracy of closed questions, and the word recall of open ones.

/// The answer type of a question: a fixed set of answers, or free text.
enum class AnswerType { kClosed, kOpen };

/// Returns the record's answer_type (CLOSED or OPEN, in any case). Without it, questions whose last
/// answer is yes or no are closed.
AnswerType get_answer_type(const io::Record& record);

/// Normalizes an answer for comparison: lower case, no punctuation (except point and comma within a
/// number), no articles a, an, the, digits for the numbers none to ten, single spaces.
std::string normalize_answer(std::string_view text);

/// The accuracy of closed questions. An answer is correct if it equals the expected one, both
/// normalized. LLaVA-Med's own script only requires that the answer contains the expected one, and
/// counts no wrong answers that contain yes or no.
struct ClosedScore {
  int64_t samples = 0;
  int64_t num_correct = 0;

  void add(std::string_view expected, std::string_view prediction);
  double accuracy() const { return samples > 0 ? static_cast<double>(num_correct) / static_cast<double>(samples) : 0; }
};

/// Scores of open questions; each is the mean over the answers. Recall and precision are those of
/// LLaVA-Med, over normalized words: a common word counts as often as the predicted answer has it.
struct OpenScore {
  int64_t samples = 0;
  int64_t num_exact = 0;  ///< equal, both normalized
  double recall_sum = 0, precision_sum = 0, f1_sum = 0;

  void add(std::string_view expected, std::string_view prediction);
  double exact_match() const { return mean(static_cast<double>(num_exact)); }
  double recall() const { return mean(recall_sum); }
  double precision() const { return mean(precision_sum); }
  double f1() const { return mean(f1_sum); }

 private:
  double mean(double sum) const { return samples > 0 ? sum / static_cast<double>(samples) : 0; }
};

}  // namespace vlmtrain::evaluation

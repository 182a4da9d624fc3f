#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "vlmtrain/io/records.h"

namespace vlmtrain::evaluation {

// Scores of visual question answering, as LLaVA-Med reports them (https://github.com/microsoft/LLaVA-Med,
// llava/eval/run_eval.py): closed questions, which yes or no answers, by accuracy, open ones by the words they recall.

enum class AnswerType { kClosed, kOpen };

/// What the record's answer_type says, CLOSED or OPEN in any case; else closed where its last answer is yes or no.
AnswerType get_answer_type(const io::Record& record);

/// How answers are compared: in lower case, without punctuation (but for the point and comma within a number) and
/// without the words a, an and the, the numbers none to ten as digits, words one space apart.
std::string normalize_answer(std::string_view text);

/// Of answers to closed questions. Right is an answer that is the expected one, both normalized. LLaVA-Med's own script
/// asks only that the expected one is within the answer, and does not count wrong answers with a yes or no in them.
struct ClosedScore {
  int64_t samples = 0;
  int64_t num_correct = 0;

  void add(std::string_view expected, std::string_view prediction);
  double accuracy() const { return samples > 0 ? static_cast<double>(num_correct) / static_cast<double>(samples) : 0; }
};

/// Of answers to open questions; each number is the mean over the answers. Recall and precision are LLaVA-Med's: of the
/// normalized words, common ones are counted as often as the given answer has them.
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

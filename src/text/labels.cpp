#include "vlmtrain/text/labels.h"

#include "vlmtrain/base/error.h"

namespace vlmtrain::text {

std::vector<char> answer_tokens(const Encoding& encoding, std::span<const Span> answers) {
  for (size_t i = 1; i < answers.size(); ++i) {
    VLMTRAIN_CHECK(answers[i - 1].end <= answers[i].begin, "answers {} and {} overlap", i - 1, i);
  }
  std::vector<char> is_answer(encoding.ids.size(), 0);
  size_t next = 0;
  for (size_t i = 0; i < encoding.starts.size(); ++i) {
    while (next < answers.size() && answers[next].end <= encoding.starts[i]) ++next;
    is_answer[i] = next < answers.size() && answers[next].begin <= encoding.starts[i] ? 1 : 0;
  }
  return is_answer;
}

}  // namespace vlmtrain::text

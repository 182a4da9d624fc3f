#include "vlmtrain/text/labels.h"

#include "text/unicode/ascii_space.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::text {

namespace {

/// Where the token behind the i-th one begins; tokens of one character begin at the same byte.
size_t find_token_end(const Encoding& encoding, size_t i, size_t text_bytes) {
  for (size_t next = i + 1; next < encoding.starts.size(); ++next) {
    if (encoding.starts[next] > encoding.starts[i]) return encoding.starts[next];
  }
  return text_bytes;
}

}  // namespace

std::vector<char> compute_label_mask(const Encoding& encoding, std::string_view text, std::span<const Span> answers) {
  for (size_t i = 1; i < answers.size(); ++i) {
    VLMTRAIN_CHECK(answers[i - 1].end <= answers[i].begin, "answers {} and {} overlap", i - 1, i);
  }
  std::vector<char> is_answer(encoding.ids.size(), 0);
  size_t next = 0;
  for (size_t i = 0; i < encoding.starts.size(); ++i) {
    while (next < answers.size() && answers[next].end <= encoding.starts[i]) ++next;
    if (next == answers.size()) break;
    const size_t start = encoding.starts[i], begin = answers[next].begin;
    const bool reaches_into_answer = start < begin && start + count_leading_white_space(text.substr(start)) >= begin &&
                                     find_token_end(encoding, i, text.size()) > begin;
    is_answer[i] = begin <= start || reaches_into_answer ? 1 : 0;
  }
  return is_answer;
}

}  // namespace vlmtrain::text

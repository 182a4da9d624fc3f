#include "evaluation/metrics/anls.h"

#include <algorithm>
#include <string>

#include "evaluation/metrics/edit_distance.h"
#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

namespace {

/// Similarities below count as 0 (Biten et al. 2019, section 4).
constexpr double kMinSimilarity = 0.5;

std::u32string normalize_spaces_and_case(std::string_view answer) {
  std::string normalized;
  for (const std::string& word : text::split_python_words(text::to_python_lower(answer))) {
    if (!normalized.empty()) normalized += ' ';
    normalized += word;
  }
  return text::decode_utf8(normalized);
}

}  // namespace

MetricSum score_anls(std::string_view expected, std::string_view prediction) {
  const auto distance = static_cast<double>(
      compute_edit_distance(normalize_spaces_and_case(expected), normalize_spaces_and_case(prediction)));
  const size_t length = std::max(text::decode_utf8(text::to_python_upper(expected)).size(),
                                 text::decode_utf8(text::to_python_upper(prediction)).size());
  const double similarity = length == 0 ? 1 : 1 - distance / static_cast<double>(length);
  return {.sum = similarity < kMinSimilarity ? 0 : similarity, .weight = 1};
}

}  // namespace vlmtrain::evaluation

#include "evaluation/metrics/edit_distance.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <vector>

#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

int64_t compute_edit_distance(std::u32string_view a, std::u32string_view b) {
  const auto prefix_end = std::ranges::mismatch(a, b).in1;
  const auto prefix = static_cast<size_t>(prefix_end - a.begin());
  a.remove_prefix(prefix);
  b.remove_prefix(prefix);
  while (!a.empty() && !b.empty() && a.back() == b.back()) {
    a.remove_suffix(1);
    b.remove_suffix(1);
  }
  // distances[j]: distance between the elements of `a` so far and the first j elements of `b`.
  std::vector<int64_t> distances(b.size() + 1);
  std::iota(distances.begin(), distances.end(), 0);
  for (size_t i = 0; i < a.size(); ++i) {
    int64_t diagonal = distances[0]++;
    for (size_t j = 0; j < b.size(); ++j) {
      const int64_t substitution = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = distances[j + 1];
      distances[j + 1] = std::min({substitution, diagonal + 1, distances[j] + 1});
    }
  }
  return distances.back();
}

namespace {

MetricSum compute_error_rate(std::u32string_view expected, std::u32string_view prediction) {
  return {.sum = static_cast<double>(compute_edit_distance(expected, prediction)),
          .weight = static_cast<double>(expected.size())};
}

}  // namespace

MetricSum score_characters(std::string_view expected, std::string_view prediction) {
  return compute_error_rate(text::decode_utf8(text::strip_python_space(expected)),
                            text::decode_utf8(text::strip_python_space(prediction)));
}

MetricSum score_words(std::string_view expected, std::string_view prediction) {
  std::map<std::string, char32_t> word_ids;
  const auto get_word_ids = [&word_ids](std::string_view answer) {
    std::u32string ids;
    for (std::string& word : text::split_python_words(answer))
      ids += word_ids.try_emplace(std::move(word), static_cast<char32_t>(word_ids.size())).first->second;
    return ids;
  };
  const std::u32string expected_ids = get_word_ids(expected);
  return compute_error_rate(expected_ids, get_word_ids(prediction));
}

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

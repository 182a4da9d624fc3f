#include "evaluation/metrics/error_rates.h"

#include <map>
#include <string>

#include "evaluation/metrics/edit_distance.h"
#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

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

}  // namespace vlmtrain::evaluation

#include "vlmtrain/evaluation/answer_score.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <sstream>

namespace vlmtrain::evaluation {

namespace {

char to_lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// Converts to lower case and punctuation to spaces. Bytes of other alphabets are kept.
std::string strip_punctuation(std::string_view text) {
  std::string stripped;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool is_in_number =
        (c == '.' || c == ',') && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (c == '\'' || (is_in_number && c == ',')) continue;  // don't equals dont, and 1,000 equals 1000
    stripped += std::ispunct(static_cast<unsigned char>(c)) != 0 && !is_in_number ? ' ' : to_lower(c);
  }
  return stripped;
}

std::map<std::string, int64_t> count_words(const std::string& normalized) {
  std::map<std::string, int64_t> counts;
  std::istringstream words(normalized);
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

}  // namespace

AnswerType get_answer_type(const io::Record& record) {
  std::string type = record.answer_type;
  std::ranges::transform(type, type.begin(), to_lower);
  if (type == "closed") return AnswerType::kClosed;
  if (type == "open") return AnswerType::kOpen;
  const std::string answer = record.turns.empty() ? "" : normalize_answer(record.turns.back().text);
  return answer == "yes" || answer == "no" ? AnswerType::kClosed : AnswerType::kOpen;
}

std::string normalize_answer(std::string_view text) {
  constexpr std::array<std::string_view, 11> kNumbers{"none", "one",   "two",   "three", "four", "five",
                                                      "six",  "seven", "eight", "nine",  "ten"};
  std::string normalized;
  const std::string stripped = strip_punctuation(text);
  std::istringstream words(stripped);
  for (std::string word; words >> word;) {
    if (word == "a" || word == "an" || word == "the") continue;
    if (word == "zero") word = "none";
    const auto number = std::ranges::find(kNumbers, word);
    if (number != kNumbers.end()) word = std::to_string(number - kNumbers.begin());
    if (!normalized.empty()) normalized += ' ';
    normalized += word;
  }
  if (!normalized.empty()) return normalized;
  // "a" alone is an option of a multiple-choice question, not an article.
  std::istringstream word_stream(stripped);
  std::string word, second_word;
  return word_stream >> word && word == "a" && !(word_stream >> second_word) ? word : normalized;
}

void ClosedScore::add(std::string_view expected, std::string_view prediction) {
  ++samples;
  num_correct += normalize_answer(expected) == normalize_answer(prediction) ? 1 : 0;
}

void OpenScore::add(std::string_view expected, std::string_view prediction) {
  ++samples;
  const std::string reference = normalize_answer(expected), candidate = normalize_answer(prediction);
  num_exact += reference == candidate ? 1 : 0;
  const auto reference_words = count_words(reference), candidate_words = count_words(candidate);
  int64_t num_common = 0, num_additional = 0, num_missed = 0;
  for (const auto& [word, count] : candidate_words)
    (reference_words.contains(word) ? num_common : num_additional) += count;
  for (const auto& [word, count] : reference_words) num_missed += candidate_words.contains(word) ? 0 : count;
  if (num_common == 0) return;
  const double precision = static_cast<double>(num_common) / static_cast<double>(num_common + num_additional);
  const double recall = static_cast<double>(num_common) / static_cast<double>(num_common + num_missed);
  precision_sum += precision;
  recall_sum += recall;
  f1_sum += 2 * precision * recall / (precision + recall);
}

}  // namespace vlmtrain::evaluation

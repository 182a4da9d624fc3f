#include "vlmtrain/evaluation/answer_score.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <map>
#include <sstream>

namespace vlmtrain::evaluation {

namespace {

char lower(char c) {
  return static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
}

bool is_digit(char c) {
  return std::isdigit(static_cast<unsigned char>(c)) != 0;
}

/// In lower case, punctuation as spaces; bytes of other alphabets stay.
std::string without_punctuation(std::string_view text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool within_number =
        (c == '.' || c == ',') && i > 0 && i + 1 < text.size() && is_digit(text[i - 1]) && is_digit(text[i + 1]);
    if (c == '\'' || (within_number && c == ',')) continue;  // don't and dont are one, and so are 1,000 and 1000
    plain += std::ispunct(static_cast<unsigned char>(c)) != 0 && !within_number ? ' ' : lower(c);
  }
  return plain;
}

std::map<std::string, int64_t> count_words(const std::string& normalized) {
  std::map<std::string, int64_t> counts;
  std::istringstream words(normalized);
  for (std::string word; words >> word;) ++counts[word];
  return counts;
}

}  // namespace

AnswerType answer_type_of(const io::Record& record) {
  std::string type = record.answer_type;
  std::ranges::transform(type, type.begin(), lower);
  if (type == "closed") return AnswerType::kClosed;
  if (type == "open") return AnswerType::kOpen;
  const std::string answer = record.turns.empty() ? "" : normalized_answer(record.turns.back().text);
  return answer == "yes" || answer == "no" ? AnswerType::kClosed : AnswerType::kOpen;
}

std::string normalized_answer(std::string_view text) {
  constexpr std::array<std::string_view, 11> kNumbers{"none", "one",   "two",   "three", "four", "five",
                                                      "six",  "seven", "eight", "nine",  "ten"};
  std::string normalized;
  const std::string plain = without_punctuation(text);
  std::istringstream words(plain);
  for (std::string word; words >> word;) {
    if (word == "a" || word == "an" || word == "the") continue;
    if (word == "zero") word = "none";
    const auto number = std::ranges::find(kNumbers, word);
    if (number != kNumbers.end()) word = std::to_string(number - kNumbers.begin());
    if (!normalized.empty()) normalized += ' ';
    normalized += word;
  }
  if (!normalized.empty()) return normalized;
  // The first of several choices, no article.
  std::istringstream single(plain);
  std::string word, further;
  return single >> word && word == "a" && !(single >> further) ? word : normalized;
}

void ClosedScore::add(std::string_view expected, std::string_view given) {
  ++samples;
  right += normalized_answer(expected) == normalized_answer(given) ? 1 : 0;
}

void OpenScore::add(std::string_view expected, std::string_view given) {
  ++samples;
  const std::string wanted = normalized_answer(expected), found = normalized_answer(given);
  exact += wanted == found ? 1 : 0;
  const auto wanted_words = count_words(wanted), found_words = count_words(found);
  int64_t common = 0, additional = 0, missed = 0;
  for (const auto& [word, count] : found_words) (wanted_words.contains(word) ? common : additional) += count;
  for (const auto& [word, count] : wanted_words) missed += found_words.contains(word) ? 0 : count;
  if (common == 0) return;
  const double precision = static_cast<double>(common) / static_cast<double>(common + additional);
  const double recall = static_cast<double>(common) / static_cast<double>(common + missed);
  precision_sum += precision;
  recall_sum += recall;
  f1_sum += 2 * precision * recall / (precision + recall);
}

}  // namespace vlmtrain::evaluation

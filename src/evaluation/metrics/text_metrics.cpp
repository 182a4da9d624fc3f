#include "evaluation/metrics/text_metrics.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

namespace {

MetricSum compute_error_rate(std::u32string_view expected, std::u32string_view prediction) {
  return {.sum = static_cast<double>(compute_edit_distance(expected, prediction)),
          .weight = static_cast<double>(expected.size())};
}

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

constexpr std::u32string_view kChoices = U"ABCDEFGH";

/// Phrases that precede the selected letter, in lower case.
constexpr std::u32string_view kAnswerPhrases[]{U"the answer is",
                                               U"answer is",
                                               U"the correct answer is",
                                               U"correct answer is",
                                               U"the best answer is",
                                               U"best answer is",
                                               U"the correct option is",
                                               U"correct option is",
                                               U"the best option is",
                                               U"best option is",
                                               U"the choice is",
                                               U"choice is",
                                               U"the correct choice is",
                                               U"correct choice is",
                                               U"i choose",
                                               U"i select",
                                               U"i pick",
                                               U"my answer is",
                                               U"my choice is",
                                               U"옵션",
                                               U"정답은",
                                               U"답은",
                                               U"답:",
                                               U"答案是",
                                               U"答案为",
                                               U"选",
                                               U"答えは"};

/// Removed at both ends of an answer, one after the other.
constexpr std::string_view kTrimmedCharacters = ",.!?;:'\"";

// Reliability of the formats, as lmms-eval ranks them.
constexpr int kAtStart = 10, kAtEnd = 9, kAfterPhrase = 7;
constexpr int kAnywhere = 0;

/// A format: the letter between two texts.
struct ChoiceFormat {
  std::u32string_view before, after;
  int priority;
};
constexpr ChoiceFormat kChoiceFormats[]{
    {U"(", U")", 6}, {U"", U".", 5}, {U"", U":", 4}, {U"", U")", 3}, {U"", U" ", 2}};

/// The most reliable of the added candidates, and the last one among equals.
class BestChoice {
 public:
  /// `pos`: position in the answer, or npos for a letter that does not occur.
  void add(char32_t letter, size_t pos, int priority) {
    if (pos == std::u32string_view::npos) return;
    if (letter_ && std::pair(priority, pos) <= std::pair(priority_, pos_)) return;
    letter_ = static_cast<char>(letter);
    priority_ = priority;
    pos_ = pos;
  }
  std::optional<char> letter() const { return letter_; }

 private:
  std::optional<char> letter_;
  int priority_ = 0;
  size_t pos_ = 0;
};

std::string trim_characters(std::string text, std::string_view characters) {
  for (const char character : characters) {
    const size_t first = text.find_first_not_of(character);
    if (first == std::string::npos) return "";
    text = text.substr(first, text.find_last_not_of(character) - first + 1);
  }
  return text;
}

void add_letters_in_formats(std::u32string_view text, BestChoice& best) {
  for (const auto& [before, after, priority] : kChoiceFormats) {
    for (const char32_t letter : kChoices)
      best.add(letter, text.rfind(std::u32string(before) + letter + std::u32string(after)), priority);
  }
}

void add_letters_after_phrases(std::u32string_view text, std::u32string_view lower_text, BestChoice& best) {
  for (const std::u32string_view phrase : kAnswerPhrases) {
    const size_t phrase_pos = lower_text.find(phrase);
    if (phrase_pos == std::u32string_view::npos) continue;
    for (const char32_t letter : kChoices)
      best.add(letter, text.find(letter, phrase_pos + phrase.size()), kAfterPhrase);
  }
}

/// Adds a letter at the start and at the end of the text, unless it is a part of a word.
void add_letters_at_ends(std::u32string_view text, BestChoice& best) {
  if (text.empty()) return;
  const bool is_single = text.size() == 1;
  const auto is_choice = [](char32_t character) { return kChoices.find(character) != std::u32string_view::npos; };
  if (is_choice(text.front()) && (is_single || !text::is_python_alpha(text[1]))) best.add(text.front(), 0, kAtStart);
  if (is_choice(text.back()) && (is_single || !text::is_python_alpha(text[text.size() - 2])))
    best.add(text.back(), text.size(), kAtEnd);
}

bool is_decimal_digit(char c) {
  return c >= '0' && c <= '9';
}

/// Returns the number of digits at the start.
size_t count_digits(std::string_view text) {
  return static_cast<size_t>(std::ranges::find_if_not(text, is_decimal_digit) - text.begin());
}

/// Returns the length of an exponent at the start, such as e-5; 0 without one.
size_t measure_exponent(std::string_view text) {
  if (text.empty() || (text[0] != 'e' && text[0] != 'E')) return 0;
  const size_t sign_length = text.size() > 1 && (text[1] == '-' || text[1] == '+') ? 1 : 0;
  const size_t num_digits = count_digits(text.substr(1 + sign_length));
  return num_digits > 0 ? 1 + sign_length + num_digits : 0;
}

/// Returns the length of a fraction at the start, with its point and at least one digit; else 0.
size_t measure_fraction(std::string_view text) {
  if (!text.starts_with('.')) return 0;
  const size_t num_digits = count_digits(text.substr(1));
  return num_digits > 0 ? 1 + num_digits : 0;
}

/// Returns the value of decimal digits with an optional minus, fraction and exponent.
double parse_decimal(const std::string& text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  // A number that is out of range is infinite or 0, as in Python.
  return error == std::errc::result_out_of_range ? std::strtod(text.c_str(), nullptr) : value;
}

/// Returns the text without underscores between two digits.
std::string remove_digit_separators(const std::string& text) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool is_separator = text[i] == '_' && i > 0 && i + 1 < text.size() && is_decimal_digit(text[i - 1]) &&
                              is_decimal_digit(text[i + 1]);
    if (!is_separator) result += text[i];
  }
  return result;
}

/// Returns infinity or NaN for their names in Python; else nullopt.
std::optional<double> parse_special_float(std::string_view unsigned_text) {
  const std::string lower_text = text::to_python_lower(unsigned_text);
  if (lower_text == "inf" || lower_text == "infinity") return std::numeric_limits<double>::infinity();
  if (lower_text == "nan") return std::numeric_limits<double>::quiet_NaN();
  return std::nullopt;
}

/// Returns the length of the whole part at the start, with its groups of three digits.
size_t measure_whole_part(std::string_view text) {
  const size_t num_digits = count_digits(text);
  constexpr size_t kGroupDigits = 3;
  if (num_digits == 0 || num_digits > kGroupDigits) return num_digits;
  size_t end = num_digits, last_end = num_digits;
  while (end < text.size() && text[end] == ',') {
    const size_t group_digits = count_digits(text.substr(end + 1));
    if (group_digits < kGroupDigits) break;
    end += 1 + kGroupDigits;
    if (group_digits > kGroupDigits) break;
    last_end = end;
  }
  return last_end;
}

/// Returns the length of the number at the start of the text, its sign included; 0 without one.
size_t measure_number(std::string_view text) {
  const size_t sign_length = text.starts_with('-') || text.starts_with('+') ? 1 : 0;
  const size_t whole_length = measure_whole_part(text.substr(sign_length));
  const size_t fraction_length = measure_fraction(text.substr(sign_length + whole_length));
  if (whole_length + fraction_length == 0) return 0;
  const size_t end = sign_length + whole_length + fraction_length;
  return end + measure_exponent(text.substr(end));
}

/// Tolerance of ChartQA, relative to the expected number.
constexpr double kMaxRelativeChange = 0.05;

std::optional<double> parse_number_or_percentage(std::string_view answer) {
  if (!answer.ends_with('%')) return parse_python_float(answer);
  const auto number = parse_python_float(answer.substr(0, answer.find_last_not_of('%') + 1));
  constexpr double kPercent = 100;
  return number ? std::optional(*number / kPercent) : std::nullopt;
}

bool is_relaxed_match(std::string_view expected, std::string_view prediction) {
  const auto expected_number = parse_number_or_percentage(expected);
  const auto predicted_number = parse_number_or_percentage(prediction);
  if (!predicted_number || expected_number.value_or(0) == 0)
    return text::to_python_lower(prediction) == text::to_python_lower(expected);
  return std::abs(*predicted_number - *expected_number) / std::abs(*expected_number) <= kMaxRelativeChange;
}

}  // namespace

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

MetricSum score_anls(std::string_view expected, std::string_view prediction) {
  const auto distance = static_cast<double>(
      compute_edit_distance(normalize_spaces_and_case(expected), normalize_spaces_and_case(prediction)));
  const size_t length = std::max(text::decode_utf8(text::to_python_upper(expected)).size(),
                                 text::decode_utf8(text::to_python_upper(prediction)).size());
  const double similarity = length == 0 ? 1 : 1 - distance / static_cast<double>(length);
  return {.sum = similarity < kMinSimilarity ? 0 : similarity, .weight = 1};
}

std::optional<char> find_selected_choice(std::string_view answer) {
  const std::string trimmed = trim_characters(text::strip_python_space(answer), kTrimmedCharacters);
  const std::string padded = " " + trimmed + " ";
  const std::u32string characters = text::decode_utf8(padded);
  BestChoice best;
  add_letters_in_formats(characters, best);
  add_letters_after_phrases(characters, text::decode_utf8(text::to_python_lower(padded)), best);
  add_letters_at_ends(text::decode_utf8(text::strip_python_space(trimmed)), best);
  if (best.letter()) return best.letter();
  for (const char32_t letter : kChoices) best.add(letter, characters.rfind(letter), kAnywhere);
  return best.letter();
}

std::optional<char> find_expected_choice(std::string_view answer) {
  std::string text = text::strip_python_space(answer);
  if (text.starts_with('(')) text.erase(0, 1);
  if (text.empty() || text[0] < 'A' || text[0] > 'H') return std::nullopt;
  constexpr std::string_view kEndsOfLetter = ".):,";
  return text.size() == 1 || kEndsOfLetter.find(text[1]) != std::string_view::npos ? std::optional(text[0])
                                                                                   : std::nullopt;
}

MetricSum score_multiple_choice(std::string_view expected, std::string_view prediction) {
  const auto expected_choice = find_expected_choice(expected);
  if (!expected_choice) return {};
  return {.sum = find_selected_choice(prediction) == expected_choice ? 1.0 : 0.0, .weight = 1};
}

std::optional<double> parse_python_float(std::string_view text) {
  const std::string stripped_text = remove_digit_separators(text::strip_python_space(text));
  std::string_view digits = stripped_text;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) digits.remove_prefix(1);
  const double sign = is_negative ? -1 : 1;
  if (const auto special_value = parse_special_float(digits)) return sign * *special_value;
  const size_t whole_length = count_digits(digits);
  const size_t fraction_length = std::max<size_t>(measure_fraction(digits.substr(whole_length)),
                                                  whole_length > 0 && digits.substr(whole_length).starts_with('.'));
  const size_t mantissa_length = whole_length + fraction_length;
  if (mantissa_length == 0) return std::nullopt;
  if (mantissa_length + measure_exponent(digits.substr(mantissa_length)) != digits.size()) return std::nullopt;
  return sign * parse_decimal(std::string(digits));
}

std::optional<double> find_last_number(std::string_view text) {
  const auto is_word_or_point = [](char c) {
    return c == '_' || c == '.' || std::isalnum(static_cast<unsigned char>(c)) != 0;
  };
  std::optional<double> last_number;
  for (size_t pos = 0; pos < text.size();) {
    const size_t length = pos > 0 && is_word_or_point(text[pos - 1]) ? 0 : measure_number(text.substr(pos));
    if (length > 0) {
      std::string number(text.substr(pos, length));
      std::erase(number, ',');
      if (number.starts_with('+')) number.erase(0, 1);
      last_number = parse_decimal(number);
    }
    pos += std::max<size_t>(1, length);
  }
  return last_number;
}

MetricSum score_number(std::string_view expected, std::string_view prediction, double tolerance) {
  const auto expected_number = find_last_number(expected);
  if (!expected_number || !std::isfinite(*expected_number)) return {};
  const auto predicted_number = find_last_number(prediction);
  const double max_difference = *expected_number == 0 ? tolerance : tolerance * std::abs(*expected_number);
  const bool is_close = predicted_number && std::abs(*predicted_number - *expected_number) <= max_difference;
  return {.sum = is_close ? 1.0 : 0.0, .weight = 1};
}

MetricSum score_relaxed_accuracy(std::string_view expected, std::string_view prediction) {
  return {.sum = is_relaxed_match(expected, prediction) ? 1.0 : 0.0, .weight = 1};
}

}  // namespace vlmtrain::evaluation

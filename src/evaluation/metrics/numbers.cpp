#include "evaluation/metrics/numbers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <string>

#include "vlmtrain/text/python_str.h"

namespace vlmtrain::evaluation {

namespace {

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

}  // namespace

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

namespace {

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

MetricSum score_relaxed_accuracy(std::string_view expected, std::string_view prediction) {
  return {.sum = is_relaxed_match(expected, prediction) ? 1.0 : 0.0, .weight = 1};
}

}  // namespace vlmtrain::evaluation

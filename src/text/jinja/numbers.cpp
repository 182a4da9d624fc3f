#include "text/jinja/numbers.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/letters.h"

namespace vlmtrain::text::jinja {
namespace {

[[noreturn]] void beyond_64_bits() {
  throw failure("a whole number leaves 64 bits");
}

Value power(const Number& left, const Number& right) {
  if (!left.is_whole || !right.is_whole || right.whole < 0) {
    if (left.real == 0 && right.real < 0) throw failure("0 cannot be raised to a negative power");
    if (left.real < 0 && right.real != std::floor(right.real)) throw failure("complex numbers are not supported");
    const double result = std::pow(left.real, right.real);
    if (std::isinf(result) && std::isfinite(left.real) && std::isfinite(right.real))
      throw failure("a number is too large");
    return Value(result);
  }
  if (left.whole == 0 || left.whole == 1) return Value(right.whole == 0 ? int64_t{1} : left.whole);
  if (left.whole == -1) return Value(right.whole % 2 == 0 ? int64_t{1} : int64_t{-1});
  int64_t result = 1;
  for (int64_t i = 0; i < right.whole; ++i) {
    if (__builtin_mul_overflow(result, left.whole, &result)) beyond_64_bits();
  }
  return Value(result);
}

/// Python's floor division and its remainder, which has the divisor's sign.
Value floor_divide(int64_t left, int64_t right, bool remainder) {
  if (right == -1) {  // what would overflow
    if (remainder) return Value(int64_t{0});
    if (left == INT64_MIN) beyond_64_bits();
    return Value(-left);
  }
  int64_t quotient = left / right;
  int64_t rest = left % right;
  if (rest != 0 && (rest < 0) != (right < 0)) {
    --quotient;
    rest += right;
  }
  return Value(remainder ? rest : quotient);
}

Value floor_divide(double left, double right, bool remainder) {
  double rest = std::fmod(left, right);
  double quotient = (left - rest) / right;
  if (rest != 0 && (right < 0) != (rest < 0)) {
    rest += right;
    quotient -= 1;
  }
  if (remainder) return Value(rest == 0 ? std::copysign(0.0, right) : rest);
  if (quotient == 0) return Value(std::copysign(0.0, left / right));
  const double whole = std::floor(quotient);
  return Value(quotient - whole > 0.5 ? whole + 1 : whole);
}

std::string without_underscores(std::string_view text, bool& proper) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || i + 1 == text.size() || !std::isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(text[i + 1]))) {
      proper = false;
    }
  }
  return plain;
}

}  // namespace

std::optional<Number> number_of(const Value& value) {
  int64_t whole = 0;
  if (value.is_whole(whole)) return Number{true, whole, static_cast<double>(whole)};
  if (value.real() != nullptr) return Number{false, 0, *value.real()};
  return std::nullopt;
}

Value calculate(Binary binary, const Number& left, const Number& right) {
  if (binary == Binary::kPower) return power(left, right);
  const bool divides = binary == Binary::kDivide || binary == Binary::kFloorDivide || binary == Binary::kModulo;
  if (divides && right.real == 0) throw failure("division by zero");
  if (binary == Binary::kDivide) return Value(left.real / right.real);
  if (!left.is_whole || !right.is_whole) {
    switch (binary) {
      case Binary::kAdd:
        return Value(left.real + right.real);
      case Binary::kSubtract:
        return Value(left.real - right.real);
      case Binary::kMultiply:
        return Value(left.real * right.real);
      default:
        return floor_divide(left.real, right.real, binary == Binary::kModulo);
    }
  }
  if (divides) return floor_divide(left.whole, right.whole, binary == Binary::kModulo);
  int64_t result = 0;
  const bool overflows = binary == Binary::kAdd        ? __builtin_add_overflow(left.whole, right.whole, &result)
                         : binary == Binary::kSubtract ? __builtin_sub_overflow(left.whole, right.whole, &result)
                                                       : __builtin_mul_overflow(left.whole, right.whole, &result);
  if (overflows) beyond_64_bits();
  return Value(result);
}

int compare_numbers(const Number& left, const Number& right) {
  // x86's long double holds every 64-bit integer.
  const auto wide = [](const Number& number) {
    return number.is_whole ? static_cast<long double>(number.whole) : static_cast<long double>(number.real);
  };
  const long double a = wide(left);
  const long double b = wide(right);
  if (a < b) return -1;
  if (a > b) return 1;
  return a == b ? 0 : 2;
}

Value rounded(const Number& number, int64_t digits) {
  if (number.is_whole) {
    if (digits >= 0) return Value(number.whole);
    if (digits < -18) return Value(int64_t{0});
    int64_t unit = 1;
    for (int64_t i = digits; i < 0; ++i) unit *= 10;
    int64_t rest = number.whole % unit;
    if (rest < 0) rest += unit;
    int64_t result = 0;
    if (__builtin_sub_overflow(number.whole, rest, &result)) beyond_64_bits();
    const bool up = rest > unit - rest || (rest == unit - rest && result / unit % 2 != 0);
    if (up && __builtin_add_overflow(result, unit, &result)) beyond_64_bits();
    return Value(result);
  }
  if (!std::isfinite(number.real) || digits > 300) return Value(number.real);
  if (digits < -308) return Value(std::copysign(0.0, number.real));
  if (digits < 0) {
    const double unit = std::pow(10.0, static_cast<double>(-digits));
    return Value(std::nearbyint(number.real / unit) * unit);
  }
  // Exact, and half to even, as printf does it.
  char text[1024];
  const auto written =
      std::to_chars(text, text + sizeof text, number.real, std::chars_format::fixed, static_cast<int>(digits));
  double value = number.real;
  std::from_chars(text, written.ptr, value);
  return Value(value);
}

std::optional<int64_t> parse_whole(std::string_view text, int base) {
  text = stripped(text);
  bool negated = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    negated = text[0] == '-';
    text.remove_prefix(1);
  }
  const auto has_prefix = [&](char letter) { return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == letter; };
  for (const auto& [letter, its_base] : {std::pair('x', 16), std::pair('o', 8), std::pair('b', 2)}) {
    if (!has_prefix(letter) || (base != its_base && base != 0)) continue;
    text.remove_prefix(text[2] == '_' ? 3 : 2);
    base = its_base;
    break;
  }
  if (base == 0) base = 10;
  bool proper = base >= 2 && base <= 36;
  const std::string digits = without_underscores(text, proper);
  uint64_t magnitude = 0;
  if (!proper || digits.empty() || digits[0] == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range || magnitude > static_cast<uint64_t>(INT64_MAX)) beyond_64_bits();
  return negated ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

std::optional<double> parse_real(std::string_view text) {
  text = stripped(text);
  bool proper = true;
  std::string digits = without_underscores(text, proper);
  std::transform(digits.begin(), digits.end(), digits.begin(),
                 [](unsigned char letter) { return letter < 0x80 ? static_cast<char>(std::tolower(letter)) : '?'; });
  std::string_view magnitude = digits;
  const bool negated = magnitude.starts_with('-');
  if (negated || magnitude.starts_with('+')) magnitude.remove_prefix(1);
  if (!proper || magnitude.empty() || magnitude[0] == '-') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(magnitude.data(), magnitude.data() + magnitude.size(), value);
  if (end != magnitude.data() + magnitude.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (magnitude.find('(') != std::string_view::npos) return std::nullopt;  // nan(…)
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(magnitude).c_str(), nullptr);
  return negated ? -value : value;
}

}  // namespace vlmtrain::text::jinja

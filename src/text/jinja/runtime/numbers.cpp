#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "text/jinja/runtime/operators.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text::jinja {
namespace {

[[noreturn]] void throw_integer_overflow() {
  throw evaluation_error("an integer exceeds 64 bits");
}

/// Returns left ** right. Throws EvaluationError for complex results and overflow.
Value compute_power(const Number& left, const Number& right) {
  if (!left.is_integer || !right.is_integer || right.integer < 0) {
    if (left.float_value == 0 && right.float_value < 0)
      throw evaluation_error("0 cannot be raised to a negative power");
    if (left.float_value < 0 && right.float_value != std::floor(right.float_value))
      throw evaluation_error("complex numbers are not supported");
    const double result = std::pow(left.float_value, right.float_value);
    if (std::isinf(result) && std::isfinite(left.float_value) && std::isfinite(right.float_value))
      throw evaluation_error("a number is too large");
    return Value(result);
  }
  // For 0, 1 and -1 the loop below would not end by overflow.
  if (left.integer == 0 || left.integer == 1) return Value(right.integer == 0 ? int64_t{1} : left.integer);
  if (left.integer == -1) return Value(right.integer % 2 == 0 ? int64_t{1} : int64_t{-1});
  int64_t result = 1;
  for (int64_t i = 0; i < right.integer; ++i) {
    if (__builtin_mul_overflow(result, left.integer, &result)) throw_integer_overflow();
  }
  return Value(result);
}

/// Returns Python's left // right, or left % right with `returns_remainder`. The remainder has the
/// sign of the divisor. REQUIRES right != 0.
Value floor_divide_or_modulo(int64_t left, int64_t right, bool returns_remainder) {
  if (right == -1) {  // INT64_MIN / -1 overflows
    if (returns_remainder) return Value(int64_t{0});
    if (left == INT64_MIN) throw_integer_overflow();
    return Value(-left);
  }
  int64_t quotient = left / right;
  int64_t remainder = left % right;
  if (remainder != 0 && (remainder < 0) != (right < 0)) {
    --quotient;
    remainder += right;
  }
  return Value(returns_remainder ? remainder : quotient);
}

/// Returns the quotient rounded down, or the remainder with `returns_remainder`. Source:
/// float_divmod() in CPython's Objects/floatobject.c.
Value floor_divide_or_modulo(double left, double right, bool returns_remainder) {
  double remainder = std::fmod(left, right);
  double quotient = (left - remainder) / right;
  if (remainder != 0 && (right < 0) != (remainder < 0)) {
    remainder += right;
    quotient -= 1;
  }
  if (returns_remainder) return Value(remainder == 0 ? std::copysign(0.0, right) : remainder);
  if (quotient == 0) return Value(std::copysign(0.0, left / right));
  const double floor_quotient = std::floor(quotient);
  return Value(quotient - floor_quotient > 0.5 ? floor_quotient + 1 : floor_quotient);
}

/// Returns `text` without underscores. Sets `is_valid` to false unless each underscore is between
/// two ASCII letters or digits. Letters are digits of bases above 10; parsing rejects other
/// letters.
std::string remove_underscores(std::string_view text, bool& is_valid) {
  std::string result;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      result += text[i];
    } else if (i == 0 || i + 1 == text.size() || !std::isalnum(static_cast<unsigned char>(text[i - 1])) ||
               !std::isalnum(static_cast<unsigned char>(text[i + 1]))) {
      is_valid = false;
    }
  }
  return result;
}

}  // namespace

std::optional<Number> to_number(const Value& value) {
  int64_t integer = 0;
  if (value.try_to_integer(integer)) return Number{true, integer, static_cast<double>(integer)};
  if (value.float_value() != nullptr) return Number{false, 0, *value.float_value()};
  return std::nullopt;
}

Value apply_binary_operator(BinaryOperator op, const Number& left, const Number& right) {
  if (op == BinaryOperator::kPower) return compute_power(left, right);
  const bool is_division =
      op == BinaryOperator::kDivide || op == BinaryOperator::kFloorDivide || op == BinaryOperator::kModulo;
  if (is_division && right.float_value == 0) throw evaluation_error("division by zero");
  if (op == BinaryOperator::kDivide) return Value(left.float_value / right.float_value);
  if (!left.is_integer || !right.is_integer) {
    switch (op) {
      case BinaryOperator::kAdd:
        return Value(left.float_value + right.float_value);
      case BinaryOperator::kSubtract:
        return Value(left.float_value - right.float_value);
      case BinaryOperator::kMultiply:
        return Value(left.float_value * right.float_value);
      default:
        return floor_divide_or_modulo(left.float_value, right.float_value, op == BinaryOperator::kModulo);
    }
  }
  if (is_division) return floor_divide_or_modulo(left.integer, right.integer, op == BinaryOperator::kModulo);
  int64_t result = 0;
  const bool overflows = op == BinaryOperator::kAdd ? __builtin_add_overflow(left.integer, right.integer, &result)
                         : op == BinaryOperator::kSubtract
                             ? __builtin_sub_overflow(left.integer, right.integer, &result)
                             : __builtin_mul_overflow(left.integer, right.integer, &result);
  if (overflows) throw_integer_overflow();
  return Value(result);
}

int compare_numbers(const Number& left, const Number& right) {
  // The long double of x86 has 64 bits of mantissa, so it holds each int64_t and each double.
  const auto to_long_double = [](const Number& number) {
    return number.is_integer ? static_cast<long double>(number.integer) : static_cast<long double>(number.float_value);
  };
  const long double left_value = to_long_double(left);
  const long double right_value = to_long_double(right);
  if (left_value < right_value) return -1;
  if (left_value > right_value) return 1;
  return left_value == right_value ? 0 : 2;
}

Value round_number(const Number& number, int64_t num_digits) {
  if (number.is_integer) {
    if (num_digits >= 0) return Value(number.integer);
    if (num_digits < -18) return Value(int64_t{0});  // `power_of_ten`, 10^19, would exceed 64 bits
    int64_t power_of_ten = 1;
    for (int64_t i = num_digits; i < 0; ++i) power_of_ten *= 10;
    int64_t remainder = number.integer % power_of_ten;
    if (remainder < 0) remainder += power_of_ten;
    int64_t result = 0;
    if (__builtin_sub_overflow(number.integer, remainder, &result)) throw_integer_overflow();
    const bool rounds_up = remainder > power_of_ten - remainder ||
                           (remainder == power_of_ten - remainder && result / power_of_ten % 2 != 0);
    if (rounds_up && __builtin_add_overflow(result, power_of_ten, &result)) throw_integer_overflow();
    return Value(result);
  }
  // CPython also returns 0 below -308 (NDIGITS_MIN). Above 323 (NDIGITS_MAX) a double always rounds
  // to itself; here already above 300.
  if (!std::isfinite(number.float_value) || num_digits > 300) return Value(number.float_value);
  if (num_digits < -308) return Value(std::copysign(0.0, number.float_value));
  if (num_digits < 0) {
    const double power_of_ten = std::pow(10.0, static_cast<double>(-num_digits));
    return Value(std::nearbyint(number.float_value / power_of_ten) * power_of_ten);
  }
  // to_chars rounds the exact value half to even, as Python does.
  char buffer[1024];  // up to 309 digits before the point and up to 300 after it
  const auto conversion_result = std::to_chars(buffer, buffer + sizeof buffer, number.float_value,
                                               std::chars_format::fixed, static_cast<int>(num_digits));
  double value = number.float_value;
  std::from_chars(buffer, conversion_result.ptr, value);
  return Value(value);
}

std::optional<int64_t> parse_int(std::string_view text, int base) {
  text = strip_white_space(text);
  bool is_negative = false;
  if (!text.empty() && (text[0] == '-' || text[0] == '+')) {
    is_negative = text[0] == '-';
    text.remove_prefix(1);
  }
  const auto has_prefix = [&](char prefix_letter) {
    return text.size() > 2 && text[0] == '0' && (text[1] | 0x20) == prefix_letter;
  };
  for (const auto& [prefix_letter, prefix_base] : {std::pair('x', 16), std::pair('o', 8), std::pair('b', 2)}) {
    if (!has_prefix(prefix_letter) || (base != prefix_base && base != 0)) continue;
    text.remove_prefix(text[2] == '_' ? 3 : 2);  // Python allows one underscore after the prefix, as in 0x_ff
    base = prefix_base;
    break;
  }
  if (base == 0) base = 10;
  bool is_valid = base >= 2 && base <= 36;
  const std::string digits = remove_underscores(text, is_valid);
  uint64_t magnitude = 0;
  // from_chars would accept another minus sign.
  if (!is_valid || digits.empty() || digits[0] == '-') return std::nullopt;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), magnitude, base);
  if (end != digits.data() + digits.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (error == std::errc::result_out_of_range || magnitude > static_cast<uint64_t>(INT64_MAX)) throw_integer_overflow();
  return is_negative ? -static_cast<int64_t>(magnitude) : static_cast<int64_t>(magnitude);
}

std::optional<double> parse_float(std::string_view text) {
  text = strip_white_space(text);
  bool is_valid = true;
  std::string digits = remove_underscores(text, is_valid);
  std::transform(digits.begin(), digits.end(), digits.begin(), [](unsigned char character) {
    return character < 0x80 ? static_cast<char>(std::tolower(character)) : '?';  // not in any number
  });
  std::string_view magnitude = digits;
  const bool is_negative = magnitude.starts_with('-');
  if (is_negative || magnitude.starts_with('+')) magnitude.remove_prefix(1);
  // from_chars would accept another minus sign.
  if (!is_valid || magnitude.empty() || magnitude[0] == '-') return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(magnitude.data(), magnitude.data() + magnitude.size(), value);
  if (end != magnitude.data() + magnitude.size() || error == std::errc::invalid_argument) return std::nullopt;
  if (magnitude.find('(') != std::string_view::npos) return std::nullopt;  // from_chars accepts nan(…), Python does not
  // from_chars leaves `value` unchanged; strtod gives 0 or infinity, as Python does.
  if (error == std::errc::result_out_of_range) value = std::strtod(std::string(magnitude).c_str(), nullptr);
  return is_negative ? -value : value;
}

}  // namespace vlmtrain::text::jinja

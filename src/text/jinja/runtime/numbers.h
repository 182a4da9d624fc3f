#pragma once

#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

/// A number in Python's arithmetic: an integer of 64 bits or a float. Booleans are the integers 0
/// and 1.
struct Number {
  bool is_integer;
  int64_t integer;     ///< 0 unless is_integer
  double float_value;  ///< the value as a double, also for integers (rounded above 2^53)
};

/// Returns the value as a number, or nothing if it is not an int, bool or float.
std::optional<Number> to_number(const Value& value);

/// Returns `left op right` as Python computes it. Throws EvaluationError for divisions by zero,
/// complex results, and integers beyond 64 bits.
Value apply_binary_operator(BinaryOperator op, const Number& left, const Number& right);

/// Returns -1, 0 or 1 if `left` is less than, equal to or greater than `right`, and 2 if one of
/// them is NaN. The comparison of an integer and a float is exact.
int compare_numbers(const Number& left, const Number& right);

/// Returns Python's round(number, num_digits), which rounds half to even. Throws EvaluationError
/// for integers beyond 64 bits.
Value round_number(const Number& number, int64_t num_digits);

/// Each returns Python's int(text, base) or float(text), or nothing if Python raises ValueError.
/// Base 0 selects the base by the prefix 0x, 0o or 0b. Throws EvaluationError for integers beyond
/// 64 bits.
std::optional<int64_t> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

}  // namespace vlmtrain::text::jinja

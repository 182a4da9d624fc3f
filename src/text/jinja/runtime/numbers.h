#pragma once

#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

/// A number in Python's arithmetic: an integer of 64 bits or a float. Booleans are the integers 0
/// and 1.
struct Number {
  bool is_integer;
  int64_t integer;
  double real;  ///< set for integers as well
};

/// Returns the value as a number, or nothing if it is not an int, bool or float.
std::optional<Number> to_number(const Value& value);

/// Returns the result of `op`. Throws EvaluationError for a division by zero and for results beyond
/// 64 bits.
Value calculate(BinaryOperator op, const Number& left, const Number& right);

/// Returns a negative number, 0 or a positive number as `left` is less than, equal to or greater
/// than `right`; 2 if one of them is NaN. Exact between integers and floats.
int compare_numbers(const Number& left, const Number& right);

/// Returns Python's round(number, digits): half to even.
Value round_number(const Number& number, int64_t digits);

/// Parses int(text, base) and float(text). Returns nothing where Python raises ValueError. Throws
/// EvaluationError for integers beyond 64 bits.
std::optional<int64_t> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

}  // namespace vlmtrain::text::jinja

#pragma once

#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {

/// A number as Python's arithmetic takes it.
struct Number {
  bool is_integer;
  int64_t integer;
  double real;  ///< of a whole one as well
};

std::optional<Number> to_number(const Value& value);
/// Of two numbers. Throws Failure for a division by zero and for what leaves 64 bits.
Value calculate(BinaryOperator op, const Number& left, const Number& right);
/// < 0, 0, > 0, or 2 where one is not a number (NaN). Exact also between integers and floats.
int compare_numbers(const Number& left, const Number& right);
/// Python's round().
Value round_number(const Number& number, int64_t digits);
/// int(text, base) and float(text); nothing where Python raises ValueError.
std::optional<int64_t> parse_int(std::string_view text, int base);
std::optional<double> parse_float(std::string_view text);

}  // namespace vlmtrain::text::jinja

#pragma once

#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {

/// A number as Python's arithmetic takes it.
struct Number {
  bool is_whole;
  int64_t whole;
  double real;  ///< of a whole one as well
};

std::optional<Number> number_of(const Value& value);
/// Of two numbers. Throws Failure for a division by zero and for what leaves 64 bits.
Value calculate(Binary binary, const Number& left, const Number& right);
/// < 0, 0, > 0, or 2 where one is not a number (NaN). Exact also between integers and floats.
int compare_numbers(const Number& left, const Number& right);
/// Python's round().
Value rounded(const Number& number, int64_t digits);
/// int(text, base) and float(text); nothing where Python raises ValueError.
std::optional<int64_t> parse_whole(std::string_view text, int base);
std::optional<double> parse_real(std::string_view text);

}  // namespace vlmtrain::text::jinja

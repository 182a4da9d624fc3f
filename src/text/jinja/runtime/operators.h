#pragma once

#include <memory>
#include <string>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/value.h"

namespace vlmtrain::text::jinja {

// Python's operators. All functions throw EvaluationError if Python raises an exception, if an
// integer exceeds 64 bits, and if the budget is exceeded.

/// The arithmetic operators with two operands.
enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
/// The operators of comparisons.
enum class ComparisonOperator { kEqual, kUnequal, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kIn, kNotIn };

/// Returns bool(value).
bool is_true(const Value& value);

/// Returns `left op right`. `%` with a text on the left is Python's string formatting.
Value apply_binary_operator(BinaryOperator op, const Value& left, const Value& right, RenderBudget& budget);

/// Returns -value.
Value negate(const Value& value);

/// Returns +value.
Value apply_unary_plus(const Value& value);

/// Each returns whether the comparison is true. is_equal() is `==`, is_less() is `<`.
bool apply_comparison_operator(ComparisonOperator comparison, const Value& left, const Value& right,
                               RenderBudget& budget);
bool is_equal(const Value& left, const Value& right, RenderBudget& budget);
bool is_less(const Value& left, const Value& right, RenderBudget& budget);

/// Returns len(value).
size_t get_length(const Value& value);

/// Returns whether iter(value) works. Undefined values iterate over nothing, as in Jinja2.
bool is_iterable(const Value& value);

/// Returns the items of iter(value): the items of a sequence, the characters of a text, the keys of
/// a dict. Exhausts a generator, so a second call for it gives an empty list.
std::shared_ptr<const Sequence> to_sequence(const Value& value, RenderBudget& budget);

// Python's numbers. A function without a budget throws only the errors that its comment names.

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

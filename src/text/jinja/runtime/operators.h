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

}  // namespace vlmtrain::text::jinja

#pragma once

#include <memory>
#include <string>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/value.h"

namespace vlmtrain::text::jinja {

/// Python's operators. All throw Failure where Python raises, and where a number leaves 64 bits.

enum class BinaryOperator { kAdd, kSubtract, kMultiply, kDivide, kFloorDivide, kModulo, kPower };
enum class Comparison { kEqual, kUnequal, kLess, kLessOrEqual, kGreater, kGreaterOrEqual, kIn, kNotIn };

bool is_true(const Value& value);
Value calculate(BinaryOperator op, const Value& left, const Value& right, Budget& budget);
Value negate(const Value& value);
Value apply_unary_plus(const Value& value);
bool compare(Comparison comparison, const Value& left, const Value& right, Budget& budget);
bool is_equal(const Value& left, const Value& right, Budget& budget);
bool is_less(const Value& left, const Value& right, Budget& budget);

/// len().
size_t get_length(const Value& value);
bool can_iterate(const Value& value);
/// What iter() goes through: the characters of a text, the keys of a dict, nothing of what is undefined. Uses a
/// generator up.
std::shared_ptr<const Sequence> to_sequence(const Value& value, Budget& budget);

}  // namespace vlmtrain::text::jinja

#include <array>

#include "text/jinja/callables.h"
#include "text/jinja/letters.h"
#include "text/jinja/numbers.h"
#include "text/jinja/operators.h"
#include "text/jinja/python_text.h"
#include "text/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

using Predicate = bool (*)(const Value&);

template <Predicate holds>
Value value_test(Context& /*context*/, const Value& value, const Bound& /*given*/) {
  return Value(holds(value));
}

template <Comparison comparison>
Value comparison_test(Context& context, const Value& value, const Bound& given) {
  return Value(compare(comparison, value, *given[0], context.budget));
}

bool is_a_sequence(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr ||
         (value.sequence() != nullptr && value.sequence()->can_index());
}
bool is_known_filter(const Value& value) {
  return value.text() != nullptr && find_filter(value.text()->view()) != nullptr;
}
bool is_known_test(const Value& value) {
  return value.text() != nullptr && find_test(value.text()->view()) != nullptr;
}

Value remainder_test(Context& context, const Value& value, const Value& divisor, const Value& wanted) {
  return Value(is_equal(calculate(Binary::kModulo, value, divisor, context.budget), wanted, context.budget));
}

template <int64_t remainder>
Value parity_test(Context& context, const Value& value, const Bound& /*given*/) {
  return remainder_test(context, value, Value(2), Value(remainder));
}

Value divisible_test(Context& context, const Value& value, const Bound& given) {
  return remainder_test(context, value, *given[0], Value(0));
}

Value same_test(Context& /*context*/, const Value& value, const Bound& given) {
  return Value(value.is_same(*given[0]));
}

/// str.islower() or str.isupper() of what str() gives.
template <bool (*wanted)(char32_t), bool (*unwanted)(char32_t)>
Value letters_test(Context& context, const Value& value, const Bound& /*given*/) {
  const MarkedText text = str_of(value, context.budget);
  bool any = false;
  for (size_t at = 0; at < text.size(); at = next_character(text.bytes(), at)) {
    const char32_t character = read_utf8(text.bytes(), at).code_point;
    if (unwanted(character) || is_title(character)) return Value(false);
    any = any || wanted(character);
  }
  return Value(any);
}

constexpr Parameters kNone = {""};
constexpr Parameters kOther = {"other", 1};

constexpr std::array kTests = {
    Method{"!=", kOther, comparison_test<Comparison::kUnequal>},
    Method{"<", kOther, comparison_test<Comparison::kLess>},
    Method{"<=", kOther, comparison_test<Comparison::kLessOrEqual>},
    Method{"==", kOther, comparison_test<Comparison::kEqual>},
    Method{">", kOther, comparison_test<Comparison::kGreater>},
    Method{">=", kOther, comparison_test<Comparison::kGreaterOrEqual>},
    Method{"boolean", kNone, value_test<[](const Value& value) { return value.boolean() != nullptr; }>},
    Method{"callable", kNone,
           value_test<[](const Value& value) { return value.object() != nullptr && value.object()->is_callable(); }>},
    Method{"defined", kNone, value_test<[](const Value& value) { return !value.is_undefined(); }>},
    Method{"divisibleby", {"num", 1}, divisible_test},
    Method{"eq", kOther, comparison_test<Comparison::kEqual>},
    Method{"equalto", kOther, comparison_test<Comparison::kEqual>},
    Method{"escaped", kNone, value_test<[](const Value& /*value*/) { return false; }>},
    Method{"even", kNone, parity_test<0>},
    Method{"false", kNone,
           value_test<[](const Value& value) { return value.boolean() != nullptr && !*value.boolean(); }>},
    Method{"filter", kNone, value_test<is_known_filter>},
    Method{"float", kNone, value_test<[](const Value& value) { return value.real() != nullptr; }>},
    Method{"ge", kOther, comparison_test<Comparison::kGreaterOrEqual>},
    Method{"greaterthan", kOther, comparison_test<Comparison::kGreater>},
    Method{"gt", kOther, comparison_test<Comparison::kGreater>},
    Method{"in", {"seq", 1}, comparison_test<Comparison::kIn>},
    Method{"integer", kNone, value_test<[](const Value& value) { return value.integer() != nullptr; }>},
    Method{"iterable", kNone, value_test<can_iterate>},
    Method{"le", kOther, comparison_test<Comparison::kLessOrEqual>},
    Method{"lessthan", kOther, comparison_test<Comparison::kLess>},
    Method{"lower", kNone, letters_test<is_lower, is_upper>},
    Method{"lt", kOther, comparison_test<Comparison::kLess>},
    Method{"mapping", kNone, value_test<[](const Value& value) { return value.dict() != nullptr; }>},
    Method{"ne", kOther, comparison_test<Comparison::kUnequal>},
    Method{"none", kNone, value_test<[](const Value& value) { return value.is_none(); }>},
    Method{"number", kNone, value_test<[](const Value& value) { return number_of(value).has_value(); }>},
    Method{"odd", kNone, parity_test<1>},
    Method{"sameas", kOther, same_test},
    Method{"sequence", kNone, value_test<is_a_sequence>},
    Method{"string", kNone, value_test<[](const Value& value) { return value.text() != nullptr; }>},
    Method{"test", kNone, value_test<is_known_test>},
    Method{"true", kNone,
           value_test<[](const Value& value) { return value.boolean() != nullptr && *value.boolean(); }>},
    Method{"undefined", kNone, value_test<[](const Value& value) { return value.is_undefined(); }>},
    Method{"upper", kNone, letters_test<is_upper, is_lower>},
};

}  // namespace

std::span<const Method> tests() {
  return kTests;
}

}  // namespace vlmtrain::text::jinja

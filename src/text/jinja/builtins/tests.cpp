#include <array>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/numbers.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/unicode_classes.h"
#include "text/unicode/utf8.h"

namespace vlmtrain::text::jinja {
namespace {

using ValuePredicate = bool (*)(const Value&);

/// A test that depends only on the value.
template <ValuePredicate predicate>
Value predicate_test(RenderContext& /*context*/, const Value& value, const BoundArguments& /*args*/) {
  return Value(predicate(value));
}

template <ComparisonOperator comparison>
Value comparison_test(RenderContext& context, const Value& value, const BoundArguments& args) {
  return Value(apply_comparison_operator(comparison, value, *args[0], context.budget));
}

/// Returns whether the value has a length and items by index. In Jinja2, this includes undefined
/// values.
bool is_sequence(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.dict() != nullptr ||
         (value.sequence() != nullptr && value.sequence()->is_indexable());
}
/// Returns whether the value is the name of a filter.
bool is_filter_name(const Value& value) {
  return value.text() != nullptr && find_filter(value.text()->view()) != nullptr;
}
/// Returns whether the value is the name of a test.
bool is_test_name(const Value& value) {
  return value.text() != nullptr && find_test(value.text()->view()) != nullptr;
}

/// Returns whether `value` % `divisor` equals `expected`.
Value has_remainder(RenderContext& context, const Value& value, const Value& divisor, const Value& expected) {
  return Value(is_equal(apply_binary_operator(BinaryOperator::kModulo, value, divisor, context.budget), expected,
                        context.budget));
}

template <int64_t remainder>
Value parity_test(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  return has_remainder(context, value, Value(2), Value(remainder));
}

Value divisibleby_test(RenderContext& context, const Value& value, const BoundArguments& args) {
  return has_remainder(context, value, *args[0], Value(0));
}

Value sameas_test(RenderContext& /*context*/, const Value& value, const BoundArguments& args) {
  return Value(value.is_identical(*args[0]));
}

/// Returns str(value).islower() or str(value).isupper().
template <bool (*is_expected_case)(char32_t), bool (*is_other_case)(char32_t)>
Value letter_case_test(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  const TextWithOrigins text = to_str(value, context.budget);
  bool has_expected_case = false;
  for (size_t pos = 0; pos < text.size(); pos = find_next_character(text.bytes(), pos)) {
    const char32_t character = read_utf8(text.bytes(), pos).code_point;
    if (is_other_case(character) || is_titlecase(character)) return Value(false);
    has_expected_case = has_expected_case || is_expected_case(character);
  }
  return Value(has_expected_case);
}

constexpr ParameterList kNoParameters = {""};
constexpr ParameterList kOtherParameter = {"other", 1};

constexpr std::array kTests = {
    Builtin{"!=", kOtherParameter, comparison_test<ComparisonOperator::kUnequal>},
    Builtin{"<", kOtherParameter, comparison_test<ComparisonOperator::kLess>},
    Builtin{"<=", kOtherParameter, comparison_test<ComparisonOperator::kLessOrEqual>},
    Builtin{"==", kOtherParameter, comparison_test<ComparisonOperator::kEqual>},
    Builtin{">", kOtherParameter, comparison_test<ComparisonOperator::kGreater>},
    Builtin{">=", kOtherParameter, comparison_test<ComparisonOperator::kGreaterOrEqual>},
    Builtin{"boolean", kNoParameters, predicate_test<[](const Value& value) { return value.boolean() != nullptr; }>},
    Builtin{
        "callable", kNoParameters,
        predicate_test<[](const Value& value) { return value.object() != nullptr && value.object()->is_callable(); }>},
    Builtin{"defined", kNoParameters, predicate_test<[](const Value& value) { return !value.is_undefined(); }>},
    Builtin{"divisibleby", {"num", 1}, divisibleby_test},
    Builtin{"eq", kOtherParameter, comparison_test<ComparisonOperator::kEqual>},
    Builtin{"equalto", kOtherParameter, comparison_test<ComparisonOperator::kEqual>},
    // Always false. Jinja2 returns true for the results of the filters escape and safe.
    Builtin{"escaped", kNoParameters, predicate_test<[](const Value& /*value*/) { return false; }>},
    Builtin{"even", kNoParameters, parity_test<0>},
    Builtin{"false", kNoParameters,
            predicate_test<[](const Value& value) { return value.boolean() != nullptr && !*value.boolean(); }>},
    Builtin{"filter", kNoParameters, predicate_test<is_filter_name>},
    Builtin{"float", kNoParameters, predicate_test<[](const Value& value) { return value.float_value() != nullptr; }>},
    Builtin{"ge", kOtherParameter, comparison_test<ComparisonOperator::kGreaterOrEqual>},
    Builtin{"greaterthan", kOtherParameter, comparison_test<ComparisonOperator::kGreater>},
    Builtin{"gt", kOtherParameter, comparison_test<ComparisonOperator::kGreater>},
    Builtin{"in", {"seq", 1}, comparison_test<ComparisonOperator::kIn>},
    Builtin{"integer", kNoParameters, predicate_test<[](const Value& value) { return value.integer() != nullptr; }>},
    Builtin{"iterable", kNoParameters, predicate_test<is_iterable>},
    Builtin{"le", kOtherParameter, comparison_test<ComparisonOperator::kLessOrEqual>},
    Builtin{"lessthan", kOtherParameter, comparison_test<ComparisonOperator::kLess>},
    Builtin{"lower", kNoParameters, letter_case_test<is_lowercase, is_uppercase>},
    Builtin{"lt", kOtherParameter, comparison_test<ComparisonOperator::kLess>},
    Builtin{"mapping", kNoParameters, predicate_test<[](const Value& value) { return value.dict() != nullptr; }>},
    Builtin{"ne", kOtherParameter, comparison_test<ComparisonOperator::kUnequal>},
    Builtin{"none", kNoParameters, predicate_test<[](const Value& value) { return value.is_none(); }>},
    Builtin{"number", kNoParameters, predicate_test<[](const Value& value) { return to_number(value).has_value(); }>},
    Builtin{"odd", kNoParameters, parity_test<1>},
    Builtin{"sameas", kOtherParameter, sameas_test},
    Builtin{"sequence", kNoParameters, predicate_test<is_sequence>},
    Builtin{"string", kNoParameters, predicate_test<[](const Value& value) { return value.text() != nullptr; }>},
    Builtin{"test", kNoParameters, predicate_test<is_test_name>},
    Builtin{"true", kNoParameters,
            predicate_test<[](const Value& value) { return value.boolean() != nullptr && *value.boolean(); }>},
    Builtin{"undefined", kNoParameters, predicate_test<[](const Value& value) { return value.is_undefined(); }>},
    Builtin{"upper", kNoParameters, letter_case_test<is_uppercase, is_lowercase>},
};

}  // namespace

std::span<const Builtin> get_tests() {
  return kTests;
}

}  // namespace vlmtrain::text::jinja

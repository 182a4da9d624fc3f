#include <array>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"

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

namespace {

/// Returns the arguments without the first `num_dropped` positional ones.
Arguments drop_leading_arguments(const Arguments& arguments, size_t num_dropped) {
  Arguments remaining_arguments;
  remaining_arguments.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(num_dropped),
                                        arguments.positional.end());
  remaining_arguments.keyword = arguments.keyword;
  return remaining_arguments;
}

/// The filters select, reject, selectattr and rejectattr. They return the items for which a test of
/// the item, or of its attribute (`uses_attribute`), is true (`keeps_matches`) or false. Without
/// the name of a test, the test is is_true().
template <bool keeps_matches, bool uses_attribute>
Value select_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const Arguments& filter_arguments = args.arguments();
  if (!is_true(value)) return make_generator({});
  constexpr size_t kTestNameIndex = uses_attribute ? 1 : 0;
  if (filter_arguments.positional.size() < kTestNameIndex)
    throw evaluation_error("selectattr and rejectattr need an attribute name");
  const Builtin* test = nullptr;
  Arguments arguments;
  if (filter_arguments.positional.size() > kTestNameIndex) {
    const TextValue* name = filter_arguments.positional[kTestNameIndex].text();
    test = name != nullptr ? find_test(name->view()) : nullptr;
    if (test == nullptr) throw EvaluationError{describe_unknown_name("test", name != nullptr ? name->view() : "")};
    arguments = drop_leading_arguments(filter_arguments, kTestNameIndex + 1);
  }
  std::vector<Value> selected_items;
  const auto items = to_sequence(value, context.budget);
  for (const Value& item : items->items) {
    const Value tested_value =
        uses_attribute ? get_item_at_path(item, filter_arguments.positional[0], context.budget) : item;
    const bool is_match =
        test != nullptr ? is_true(call_builtin(context, *test, tested_value, arguments)) : is_true(tested_value);
    if (is_match == keeps_matches) selected_items.push_back(item);
  }
  context.budget.charge_allocation(selected_items.size() * sizeof(Value));
  return make_generator(std::move(selected_items));
}

/// Returns the keyword argument `name`, or null.
const Value* find_keyword_argument(const Arguments& arguments, std::string_view name) {
  for (const auto& [key, value] : arguments.keyword) {
    if (key == name) return &value;
  }
  return nullptr;
}

/// Returns the attributes of `items`, the result of map(attribute=…, default=…). REQUIRES the
/// keyword argument `attribute`.
std::vector<Value> map_attributes(RenderContext& context, const Sequence& items, const Arguments& filter_arguments) {
  const Value* attribute_path = find_keyword_argument(filter_arguments, "attribute");
  const Value* fallback = find_keyword_argument(filter_arguments, "default");
  if (filter_arguments.keyword.size() > (fallback != nullptr ? 2U : 1U))
    throw evaluation_error("map takes attribute and default as keyword arguments");
  std::vector<Value> mapped_items;
  for (const Value& item : items.items) {
    Value attribute = get_item_at_path(item, *attribute_path, context.budget);
    if (attribute.is_undefined() && fallback != nullptr && !fallback->is_none()) attribute = *fallback;
    mapped_items.push_back(std::move(attribute));
  }
  return mapped_items;
}

Value map_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const Arguments& filter_arguments = args.arguments();
  if (!is_true(value)) return make_generator({});
  const auto items = to_sequence(value, context.budget);
  context.budget.charge_allocation(items->items.size() * sizeof(Value));
  if (filter_arguments.positional.empty() && find_keyword_argument(filter_arguments, "attribute") != nullptr) {
    return make_generator(map_attributes(context, *items, filter_arguments));
  }
  const TextValue* name = filter_arguments.positional.empty() ? nullptr : filter_arguments.positional[0].text();
  const Builtin* filter = name != nullptr ? find_filter(name->view()) : nullptr;
  if (filter == nullptr) throw EvaluationError{describe_unknown_name("filter", name != nullptr ? name->view() : "")};
  const Arguments arguments = drop_leading_arguments(filter_arguments, 1);
  std::vector<Value> mapped_items;
  for (const Value& item : items->items) mapped_items.push_back(call_builtin(context, *filter, item, arguments));
  return make_generator(std::move(mapped_items));
}

Value attr_filter(RenderContext& /*context*/, const Value& value, const BoundArguments& args) {
  const std::string_view name = args.required_text(0).view();
  if (value.dict() != nullptr) return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  return get_attribute(value, name);
}

constexpr std::array kSelectFilters = {
    Builtin{"attr", {"name", 1}, attr_filter},
    Builtin{"map", {"*"}, map_filter},
    Builtin{"reject", {"*"}, select_filter<false, false>},
    Builtin{"rejectattr", {"*"}, select_filter<false, true>},
    Builtin{"select", {"*"}, select_filter<true, false>},
    Builtin{"selectattr", {"*"}, select_filter<true, true>},
};

}  // namespace

std::span<const Builtin> get_select_filters() {
  return kSelectFilters;
}

}  // namespace vlmtrain::text::jinja

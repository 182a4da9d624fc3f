#include "text/jinja/runtime/operators.h"

#include <algorithm>
#include <array>

#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text::jinja {
namespace {

/// Symbols of BinaryOperator, in its order, for messages.
constexpr std::array kOperatorSymbols = {"+", "-", "*", "/", "//", "%", "**"};

/// Throws EvaluationError for undefined values.
void check_operand_defined(const Value& value) {
  if (value.is_undefined()) throw EvaluationError{value.get_undefined_message()};
}

/// Returns whether the value is a list or a tuple.
bool is_list_or_tuple(const Value& value) {
  return value.sequence() != nullptr &&
         (value.sequence()->type == Sequence::Type::kList || value.sequence()->type == Sequence::Type::kTuple);
}

/// Returns `value * times`. REQUIRES that `value` is a text, list or tuple.
Value repeat_value(const Value& value, int64_t times, RenderBudget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  // Checks without overflow, then charges `count` copies of `size` bytes.
  const auto charge_copies = [&](size_t size) {
    if (size != 0 && count > kMaxTextBytes / size) RenderBudget::check_value_size(kMaxTextBytes + 1);
    budget.charge_allocation(size * count);
  };
  if (value.text() != nullptr) {
    const TextWithOrigins& text = value.text()->content;
    charge_copies(text.size() + text.origin_spans().size() * sizeof(OriginSpan));
    TextWithOrigins out;
    for (size_t i = 0; i < count && (!text.empty() || i == 0); ++i) out.append(text);
    out.inherit_origins(text);
    return Value::text(std::move(out));
  }
  const std::vector<Value>& items = value.sequence()->items;
  charge_copies(items.size() * sizeof(Value));
  std::vector<Value> out;
  out.reserve(items.size() * count);
  for (size_t i = 0; i < count && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return Value(std::make_shared<const Sequence>(value.sequence()->type, std::move(out)));
}

/// Returns left + right if both are texts, lists or tuples. Returns undefined for other types.
Value try_concatenate(const Value& left, const Value& right, RenderBudget& budget) {
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.charge_allocation(left.text()->view().size() + right.text()->view().size());
    const bool is_escaped = left.text()->is_escaped || right.text()->is_escaped;
    const auto escape_if_needed = [&](const TextValue& text) {
      return is_escaped && !text.is_escaped ? escape_html(text.content) : text.content;
    };
    TextWithOrigins out = escape_if_needed(*left.text());
    out.append(escape_if_needed(*right.text()));
    return Value::text(std::move(out), is_escaped);
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.sequence()->type == right.sequence()->type) {
    budget.charge_allocation((left.sequence()->items.size() + right.sequence()->items.size()) * sizeof(Value));
    std::vector<Value> items = left.sequence()->items;
    items.insert(items.end(), right.sequence()->items.begin(), right.sequence()->items.end());
    return Value(std::make_shared<const Sequence>(left.sequence()->type, std::move(items)));
  }
  return {};
}

/// Returns whether both have equal items in the same order.
bool have_equal_items(const Sequence& left, const Sequence& right, RenderBudget& budget) {
  if (left.type != right.type || left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    if (!is_equal(left.items[i], right.items[i], budget)) return false;
  }
  return true;
}

/// Returns whether both have the same keys with equal values, in any order.
bool have_equal_entries(const Dict& left, const Dict& right, RenderBudget& budget) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    budget.charge_scan(right.entries.size());
    const Value* right_value = right.find(key);
    if (right_value == nullptr || !is_equal(value, *right_value, budget)) return false;
  }
  return true;
}

/// Returns `element in container`.
bool contains_element(const Value& container, const Value& element, RenderBudget& budget) {
  if (container.text() != nullptr) {
    if (element.text() == nullptr)
      throw evaluation_error("'in <string>' requires a string as left operand, not {}", element.type_name());
    budget.charge_scan(container.text()->view().size());
    return find_substring(container.text()->view(), element.text()->view(), 0) != std::string_view::npos;
  }
  if (container.dict() != nullptr) {
    if (element.sequence() != nullptr && element.sequence()->type == Sequence::Type::kList)
      throw evaluation_error("unhashable key of type list");
    if (element.dict() != nullptr) throw evaluation_error("unhashable key of type dict");
    budget.charge_scan(container.dict()->entries.size());
    return container.dict()->find(element) != nullptr;
  }
  const auto items = to_sequence(container, budget);
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& item) { return item.is_identical(element) || is_equal(item, element, budget); });
}

}  // namespace

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = to_number(value)) return number->is_integer ? number->integer != 0 : number->float_value != 0;
  if (value.text() != nullptr) return !value.text()->view().empty();
  if (value.sequence() != nullptr) return !value.sequence()->has_length() || !value.sequence()->items.empty();
  if (value.dict() != nullptr) return !value.dict()->entries.empty();
  return true;
}

Value apply_binary_operator(BinaryOperator op, const Value& left, const Value& right, RenderBudget& budget) {
  if (op == BinaryOperator::kModulo && left.text() != nullptr) return apply_percent_format(*left.text(), right, budget);
  check_operand_defined(left);
  check_operand_defined(right);
  const auto left_number = to_number(left);
  const auto right_number = to_number(right);
  if (left_number && right_number) return apply_binary_operator(op, *left_number, *right_number);
  if (op == BinaryOperator::kAdd) {
    Value concatenated_value = try_concatenate(left, right, budget);
    if (!concatenated_value.is_undefined()) return concatenated_value;
  }
  if (op == BinaryOperator::kMultiply) {
    const auto is_repeatable = [](const Value& value) { return value.text() != nullptr || is_list_or_tuple(value); };
    if (is_repeatable(left) && right_number && right_number->is_integer)
      return repeat_value(left, right_number->integer, budget);
    if (is_repeatable(right) && left_number && left_number->is_integer)
      return repeat_value(right, left_number->integer, budget);
  }
  throw evaluation_error("unsupported operand types for {}: {} and {}", kOperatorSymbols[static_cast<size_t>(op)],
                         left.type_name(), right.type_name());
}

Value negate(const Value& value) {
  check_operand_defined(value);
  const auto number = to_number(value);
  if (!number) throw evaluation_error("unsupported operand type for unary -: {}", value.type_name());
  if (!number->is_integer) return Value(-number->float_value);
  return apply_binary_operator(BinaryOperator::kSubtract, Number{true, 0, 0}, *number);
}

Value apply_unary_plus(const Value& value) {
  check_operand_defined(value);
  const auto number = to_number(value);
  if (!number) throw evaluation_error("unsupported operand type for unary +: {}", value.type_name());
  return number->is_integer ? Value(number->integer) : value;
}

bool is_equal(const Value& left, const Value& right, RenderBudget& budget) {
  budget.charge_steps();
  if (left.text() != nullptr || right.text() != nullptr) {
    if (left.text() == nullptr || right.text() == nullptr ||
        left.text()->view().size() != right.text()->view().size()) {
      return false;
    }
    budget.charge_scan(left.text()->view().size());
    return left.text()->view() == right.text()->view();
  }
  const auto left_number = to_number(left);
  const auto right_number = to_number(right);
  if (left_number && right_number) return compare_numbers(*left_number, *right_number) == 0;
  if (left.sequence() != nullptr && right.sequence() != nullptr) {
    if (!left.sequence()->is_indexable()) return left.is_identical(right);
    return have_equal_items(*left.sequence(), *right.sequence(), budget);
  }
  if (left.dict() != nullptr && right.dict() != nullptr) return have_equal_entries(*left.dict(), *right.dict(), budget);
  if (left.object() != nullptr || right.object() != nullptr) return left.object() == right.object();
  return (left.is_undefined() && right.is_undefined()) || (left.is_none() && right.is_none());
}

bool is_less(const Value& left, const Value& right, RenderBudget& budget) {
  budget.charge_steps();
  check_operand_defined(left);
  check_operand_defined(right);
  const auto left_number = to_number(left);
  const auto right_number = to_number(right);
  if (left_number && right_number) return compare_numbers(*left_number, *right_number) < 0;
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.charge_scan(std::min(left.text()->view().size(), right.text()->view().size()));
    return left.text()->view() < right.text()->view();  // UTF-8 bytes sort like code points
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.sequence()->type == right.sequence()->type) {
    const std::vector<Value>& left_items = left.sequence()->items;
    const std::vector<Value>& right_items = right.sequence()->items;
    for (size_t i = 0; i < std::min(left_items.size(), right_items.size()); ++i) {
      if (!is_equal(left_items[i], right_items[i], budget)) return is_less(left_items[i], right_items[i], budget);
    }
    return left_items.size() < right_items.size();
  }
  throw evaluation_error("{} and {} cannot be ordered", left.type_name(), right.type_name());
}

bool apply_comparison_operator(ComparisonOperator comparison, const Value& left, const Value& right,
                               RenderBudget& budget) {
  // Not !is_less(second, first), because all comparisons with NaN are false.
  const auto is_less_or_equal = [&](const Value& first, const Value& second) {
    return is_less(first, second, budget) || is_equal(first, second, budget);
  };
  switch (comparison) {
    case ComparisonOperator::kEqual:
      return is_equal(left, right, budget);
    case ComparisonOperator::kUnequal:
      return !is_equal(left, right, budget);
    case ComparisonOperator::kLess:
      return is_less(left, right, budget);
    case ComparisonOperator::kLessOrEqual:
      return is_less_or_equal(left, right);
    case ComparisonOperator::kGreater:
      return is_less(right, left, budget);
    case ComparisonOperator::kGreaterOrEqual:
      return is_less_or_equal(right, left);
    case ComparisonOperator::kIn:
      return contains_element(right, left, budget);
    case ComparisonOperator::kNotIn:
      return !contains_element(right, left, budget);
  }
  return false;
}

size_t get_length(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return value.text()->length;
  if (value.sequence() != nullptr && value.sequence()->has_length()) return value.sequence()->items.size();
  if (value.dict() != nullptr) return value.dict()->entries.size();
  throw evaluation_error("a value of type {} has no length", value.type_name());
}

bool is_iterable(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr;
}

std::shared_ptr<const Sequence> to_sequence(const Value& value, RenderBudget& budget) {
  if (!is_iterable(value)) throw evaluation_error("a value of type {} is not iterable", value.type_name());
  if (value.sequence() != nullptr) {
    const Sequence& sequence = *value.sequence();
    if (!sequence.is_exhausted) {  // otherwise a generator without further items
      sequence.is_exhausted = !sequence.has_length();
      return value.shared_sequence();
    }
  }
  std::vector<Value> items;
  if (value.text() != nullptr) {
    const TextValue& text = *value.text();
    budget.charge_allocation(text.length * (sizeof(Value) + sizeof(TextValue)));
    items.reserve(text.length);
    for (size_t pos = 0, end = 0; pos < text.view().size(); pos = end) {
      end = find_next_character(text.view(), pos);
      items.push_back(Value::text(text.content.slice(pos, end)));
    }
  }
  if (value.dict() != nullptr) {
    budget.charge_allocation(value.dict()->entries.size() * sizeof(Value));
    for (const auto& entry : value.dict()->entries) items.push_back(entry.first);
  }
  return std::make_shared<const Sequence>(Sequence::Type::kList, std::move(items));
}

}  // namespace vlmtrain::text::jinja

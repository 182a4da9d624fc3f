#include "text/jinja/operators.h"

#include <algorithm>
#include <array>

#include "text/jinja/letters.h"
#include "text/jinja/numbers.h"
#include "text/jinja/printf.h"
#include "text/jinja/text_edit.h"

namespace vlmtrain::text::jinja {
namespace {

constexpr std::array kSigns = {"+", "-", "*", "/", "//", "%", "**"};

void need_defined(const Value& value) {
  if (value.is_undefined()) throw Failure{value.why_undefined()};
}

bool is_list_or_tuple(const Value& value) {
  return value.sequence() != nullptr &&
         (value.sequence()->form == Sequence::Form::kList || value.sequence()->form == Sequence::Form::kTuple);
}

Value repeated(const Value& value, int64_t times, Budget& budget) {
  const auto count = static_cast<size_t>(std::max<int64_t>(times, 0));
  const auto reserve = [&](size_t size) {
    if (size != 0 && count > kMaxTextBytes / size) Budget::check_text(kMaxTextBytes + 1);
    budget.made(size * count);
  };
  if (value.text() != nullptr) {
    const MarkedText& text = value.text()->marked;
    reserve(text.size() + text.runs().size() * sizeof(Run));
    MarkedText out;
    for (size_t i = 0; i < count && (!text.empty() || i == 0); ++i) out.append(text);
    out.keep_place_of(text);
    return Value::text(std::move(out));
  }
  const std::vector<Value>& items = value.sequence()->items;
  reserve(items.size() * sizeof(Value));
  std::vector<Value> out;
  out.reserve(items.size() * count);
  for (size_t i = 0; i < count && !items.empty(); ++i) out.insert(out.end(), items.begin(), items.end());
  return Value(std::make_shared<const Sequence>(value.sequence()->form, std::move(out)));
}

/// Joined, or undefined where they are no two of a kind.
Value joined(const Value& left, const Value& right, Budget& budget) {
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.made(left.text()->view().size() + right.text()->view().size());
    const bool is_escaped = left.text()->is_escaped || right.text()->is_escaped;
    const auto part = [&](const Text& text) {
      return is_escaped && !text.is_escaped ? html_escaped(text.marked) : text.marked;
    };
    MarkedText out = part(*left.text());
    out.append(part(*right.text()));
    return Value::text(std::move(out), is_escaped);
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.sequence()->form == right.sequence()->form) {
    budget.made((left.sequence()->items.size() + right.sequence()->items.size()) * sizeof(Value));
    std::vector<Value> items = left.sequence()->items;
    items.insert(items.end(), right.sequence()->items.begin(), right.sequence()->items.end());
    return Value(std::make_shared<const Sequence>(left.sequence()->form, std::move(items)));
  }
  return {};
}

bool has_equal_items(const Sequence& left, const Sequence& right, Budget& budget) {
  if (left.form != right.form || left.items.size() != right.items.size()) return false;
  for (size_t i = 0; i < left.items.size(); ++i) {
    if (!is_equal(left.items[i], right.items[i], budget)) return false;
  }
  return true;
}

bool has_equal_entries(const Dict& left, const Dict& right, Budget& budget) {
  if (left.entries.size() != right.entries.size()) return false;
  for (const auto& [key, value] : left.entries) {
    budget.walk(right.entries.size());
    const Value* other = right.find(key);
    if (other == nullptr || !is_equal(value, *other, budget)) return false;
  }
  return true;
}

bool contains(const Value& where, const Value& what, Budget& budget) {
  if (where.text() != nullptr) {
    if (what.text() == nullptr) throw failure("'in <string>' needs a text on its left, not {}", what.type_name());
    budget.walk(where.text()->view().size());
    return find_text(where.text()->view(), what.text()->view(), 0) != std::string_view::npos;
  }
  if (where.dict() != nullptr) {
    if (what.sequence() != nullptr && what.sequence()->form == Sequence::Form::kList) throw failure("a list is no key");
    if (what.dict() != nullptr) throw failure("a dict is no key");
    budget.walk(where.dict()->entries.size());
    return where.dict()->find(what) != nullptr;
  }
  const auto items = items_of(where, budget);
  return std::any_of(items->items.begin(), items->items.end(),
                     [&](const Value& item) { return item.is_same(what) || is_equal(item, what, budget); });
}

}  // namespace

bool is_true(const Value& value) {
  if (value.is_undefined() || value.is_none()) return false;
  if (const auto number = number_of(value)) return number->is_whole ? number->whole != 0 : number->real != 0;
  if (value.text() != nullptr) return !value.text()->view().empty();
  if (value.sequence() != nullptr) return !value.sequence()->has_length() || !value.sequence()->items.empty();
  if (value.dict() != nullptr) return !value.dict()->entries.empty();
  return true;
}

Value calculate(Binary binary, const Value& left, const Value& right, Budget& budget) {
  if (binary == Binary::kModulo && left.text() != nullptr) return print_formatted(*left.text(), right, budget);
  need_defined(left);
  need_defined(right);
  const auto left_number = number_of(left);
  const auto right_number = number_of(right);
  if (left_number && right_number) return calculate(binary, *left_number, *right_number);
  if (binary == Binary::kAdd) {
    Value sum = joined(left, right, budget);
    if (!sum.is_undefined()) return sum;
  }
  if (binary == Binary::kMultiply) {
    const auto can_repeat = [](const Value& value) { return value.text() != nullptr || is_list_or_tuple(value); };
    if (can_repeat(left) && right_number && right_number->is_whole) return repeated(left, right_number->whole, budget);
    if (can_repeat(right) && left_number && left_number->is_whole) return repeated(right, left_number->whole, budget);
  }
  throw failure("{} cannot be had of {} and {}", kSigns[static_cast<size_t>(binary)], left.type_name(),
                right.type_name());
}

Value negative(const Value& value) {
  need_defined(value);
  const auto number = number_of(value);
  if (!number) throw failure("- cannot be had of {}", value.type_name());
  if (!number->is_whole) return Value(-number->real);
  return calculate(Binary::kSubtract, Number{true, 0, 0}, *number);
}

Value positive(const Value& value) {
  need_defined(value);
  const auto number = number_of(value);
  if (!number) throw failure("+ cannot be had of {}", value.type_name());
  return number->is_whole ? Value(number->whole) : value;
}

bool is_equal(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  if (left.text() != nullptr || right.text() != nullptr) {
    if (left.text() == nullptr || right.text() == nullptr ||
        left.text()->view().size() != right.text()->view().size()) {
      return false;
    }
    budget.walk(left.text()->view().size());
    return left.text()->view() == right.text()->view();
  }
  const auto left_number = number_of(left);
  const auto right_number = number_of(right);
  if (left_number && right_number) return compare_numbers(*left_number, *right_number) == 0;
  if (left.sequence() != nullptr && right.sequence() != nullptr) {
    if (!left.sequence()->can_index()) return left.is_same(right);
    return has_equal_items(*left.sequence(), *right.sequence(), budget);
  }
  if (left.dict() != nullptr && right.dict() != nullptr) return has_equal_entries(*left.dict(), *right.dict(), budget);
  if (left.object() != nullptr || right.object() != nullptr) return left.object() == right.object();
  return (left.is_undefined() && right.is_undefined()) || (left.is_none() && right.is_none());
}

bool is_less(const Value& left, const Value& right, Budget& budget) {
  budget.step();
  need_defined(left);
  need_defined(right);
  const auto left_number = number_of(left);
  const auto right_number = number_of(right);
  if (left_number && right_number) return compare_numbers(*left_number, *right_number) < 0;
  if (left.text() != nullptr && right.text() != nullptr) {
    budget.walk(std::min(left.text()->view().size(), right.text()->view().size()));
    return left.text()->view() < right.text()->view();  // UTF-8 has the order of the code points
  }
  if (is_list_or_tuple(left) && is_list_or_tuple(right) && left.sequence()->form == right.sequence()->form) {
    const std::vector<Value>& a = left.sequence()->items;
    const std::vector<Value>& b = right.sequence()->items;
    for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
      if (!is_equal(a[i], b[i], budget)) return is_less(a[i], b[i], budget);
    }
    return a.size() < b.size();
  }
  throw failure("{} and {} have no order", left.type_name(), right.type_name());
}

bool compare(Comparison comparison, const Value& left, const Value& right, Budget& budget) {
  // Not the opposite of the other: of NaN neither holds.
  const auto at_most = [&](const Value& a, const Value& b) { return is_less(a, b, budget) || is_equal(a, b, budget); };
  switch (comparison) {
    case Comparison::kEqual:
      return is_equal(left, right, budget);
    case Comparison::kUnequal:
      return !is_equal(left, right, budget);
    case Comparison::kLess:
      return is_less(left, right, budget);
    case Comparison::kLessOrEqual:
      return at_most(left, right);
    case Comparison::kGreater:
      return is_less(right, left, budget);
    case Comparison::kGreaterOrEqual:
      return at_most(right, left);
    case Comparison::kIn:
      return contains(right, left, budget);
    case Comparison::kNotIn:
      return !contains(right, left, budget);
  }
  return false;
}

size_t length_of(const Value& value) {
  if (value.is_undefined()) return 0;
  if (value.text() != nullptr) return value.text()->length;
  if (value.sequence() != nullptr && value.sequence()->has_length()) return value.sequence()->items.size();
  if (value.dict() != nullptr) return value.dict()->entries.size();
  throw failure("a value of type {} has no length", value.type_name());
}

bool can_iterate(const Value& value) {
  return value.is_undefined() || value.text() != nullptr || value.sequence() != nullptr || value.dict() != nullptr;
}

std::shared_ptr<const Sequence> items_of(const Value& value, Budget& budget) {
  if (!can_iterate(value)) throw failure("a value of type {} cannot be walked through", value.type_name());
  if (value.sequence() != nullptr) {
    const Sequence& sequence = *value.sequence();
    if (!sequence.used_up) {
      sequence.used_up = !sequence.has_length();
      return value.shared_sequence();
    }
  }
  std::vector<Value> items;
  if (value.text() != nullptr) {
    const Text& text = *value.text();
    budget.made(text.length * (sizeof(Value) + sizeof(Text)));
    items.reserve(text.length);
    for (size_t at = 0, end = 0; at < text.view().size(); at = end) {
      end = next_character(text.view(), at);
      items.push_back(Value::text(text.marked.slice(at, end)));
    }
  }
  if (value.dict() != nullptr) {
    budget.made(value.dict()->entries.size() * sizeof(Value));
    for (const auto& entry : value.dict()->entries) items.push_back(entry.first);
  }
  return std::make_shared<const Sequence>(Sequence::Form::kList, std::move(items));
}

}  // namespace vlmtrain::text::jinja

#include "text/jinja/runtime/object.h"

#include <algorithm>

#include "text/jinja/runtime/budget.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"
#include "text/unicode/characters.h"

namespace vlmtrain::text::jinja {
namespace {

/// Throws EvaluationError for undefined values.
void check_defined(const Value& value) {
  if (value.is_undefined()) throw EvaluationError{value.get_undefined_message()};
}

/// Returns item `index` of a text or sequence, or nothing if it is out of range.
std::optional<Value> find_item_by_index(const Value& value, int64_t index) {
  const bool is_text = value.text() != nullptr;
  const auto count = static_cast<int64_t>(is_text ? value.text()->length : value.sequence()->items.size());
  if (index < 0) index += count;
  if (index < 0 || index >= count) return std::nullopt;
  if (!is_text) return value.sequence()->items[static_cast<size_t>(index)];
  const TextValue& text = *value.text();
  const size_t pos =
      text.is_ascii ? static_cast<size_t>(index) : to_byte_offset(text.view(), static_cast<size_t>(index));
  return Value::text(text.content.slice(pos, find_next_character(text.view(), pos)));
}

/// Returns value[key], or nothing if Python raises an exception.
std::optional<Value> find_item(const Value& value, const Value& key, RenderBudget& budget) {
  int64_t index = 0;
  if (value.dict() != nullptr) {
    budget.charge_scan(value.dict()->entries.size());
    const Value* item = value.dict()->find(key);
    return item != nullptr ? std::optional<Value>(*item) : std::nullopt;
  }
  const bool is_indexable =
      value.text() != nullptr || (value.sequence() != nullptr && value.sequence()->is_indexable());
  if (!is_indexable || !key.try_to_integer(index)) return std::nullopt;
  if (value.text() != nullptr && !value.text()->is_ascii) budget.charge_scan(value.text()->view().size());
  return find_item_by_index(value, index);
}

/// Returns an undefined value with Jinja2's message about the missing attribute.
Value make_undefined_attribute(const Value& value, std::string_view name) {
  const std::string type = value.is_none()             ? "None"
                           : value.object() != nullptr ? std::string(value.type_name())
                                                       : std::string(value.type_name()) + " object";
  return Value::undefined(fmt::format("'{}' has no attribute '{}'", type, name));
}

/// Returns the attribute or method `name`, or nothing.
std::optional<Value> find_attribute(const Value& value, std::string_view name) {
  if (value.object() != nullptr) return value.object()->find_attribute(name);
  if (value.sequence() != nullptr && value.sequence()->is_groupby_item) {
    if (name == "grouper") return value.sequence()->items[0];
    if (name == "list") return value.sequence()->items[1];
  }
  return find_bound_method(value, name);
}

/// The items of a slice: `count` items at the indices begin, begin + step, …
struct SliceIndices {
  int64_t begin;
  int64_t step;
  int64_t count;
};

/// Returns the indices of value[begin:end:step] for a value with `size` items, as Python's
/// slice.indices(). Throws EvaluationError for a step of 0 and for bounds that are neither integers
/// nor None.
SliceIndices compute_slice_indices(int64_t size, const Value& begin, const Value& end, const Value& step) {
  const auto to_integer_or_fallback = [](const Value& bound, int64_t fallback) {
    int64_t out = fallback;
    if (!bound.is_none() && !bound.try_to_integer(out)) {
      check_defined(bound);
      throw evaluation_error("a slice needs integers, not {}", bound.type_name());
    }
    return out;
  };
  // -INT64_MAX, so that -stride does not overflow.
  const int64_t stride = std::max(to_integer_or_fallback(step, 1), -INT64_MAX);
  if (stride == 0) throw evaluation_error("the step of a slice cannot be 0");
  const auto resolve_bound = [&](const Value& bound, int64_t fallback) {
    if (bound.is_none()) return fallback;
    int64_t pos = to_integer_or_fallback(bound, 0);
    if (pos < 0) pos = pos < -size ? -1 : pos + size;
    if (pos < 0) return stride < 0 ? int64_t{-1} : int64_t{0};
    return std::min(pos, stride < 0 ? size - 1 : size);
  };
  const int64_t begin_index = resolve_bound(begin, stride < 0 ? size - 1 : 0);
  const int64_t end_index = resolve_bound(end, stride < 0 ? -1 : size);
  int64_t count = 0;
  if (stride > 0 && begin_index < end_index) count = (end_index - begin_index - 1) / stride + 1;
  if (stride < 0 && end_index < begin_index) count = (begin_index - end_index - 1) / -stride + 1;
  return {begin_index, stride, count};
}

/// Returns the characters of a slice with their origins. `slice` counts characters.
Value slice_text(const TextValue& text, const SliceIndices& slice, RenderBudget& budget) {
  const std::string_view bytes = text.view();
  if (!text.is_ascii) budget.charge_scan(bytes.size());
  const auto get_byte_offset = [&](int64_t index) {
    return text.is_ascii ? static_cast<size_t>(index) : to_byte_offset(bytes, static_cast<size_t>(index));
  };
  if (slice.step == 1 || slice.count == 0) {
    // An empty slice keeps its position, its begin, which may be out of range.
    const size_t begin = get_byte_offset(std::clamp<int64_t>(slice.begin, 0, static_cast<int64_t>(text.length)));
    const size_t end = slice.count == 0 ? begin : get_byte_offset(slice.begin + slice.count);
    budget.charge_allocation(end - begin);
    return Value::text(text.content.slice(begin, end));
  }
  TextWithOrigins out;
  size_t pos = get_byte_offset(slice.begin);
  for (int64_t num_appended = 0;;) {
    out.append(text.content, pos, find_next_character(bytes, pos));
    if (++num_appended == slice.count) break;
    for (int64_t i = 0; i < slice.step; ++i) pos = find_next_character(bytes, pos);
    for (int64_t i = 0; i > slice.step; --i) pos = find_previous_character(bytes, pos);
  }
  budget.charge_allocation(out.size());
  return Value::text(std::move(out));
}

}  // namespace

Value make_text_result(RenderContext& context, TextWithOrigins text) {
  context.budget.charge_allocation(text.size());
  return Value::text(std::move(text));
}

BoundArguments::BoundArguments(std::string_view callee_name, const ParameterList& parameters,
                               const Arguments& arguments)
    : callee_name_(callee_name), arguments_(&arguments) {
  if (parameters.names == "*") return;
  std::vector<std::string_view> names;
  for (std::string_view remaining = parameters.names; !remaining.empty();) {
    const size_t end = std::min(remaining.find(' '), remaining.size());
    names.push_back(remaining.substr(0, end));
    remaining.remove_prefix(std::min(end + 1, remaining.size()));
  }
  if (arguments.positional.size() > names.size()) {
    throw evaluation_error("{} takes at most {} arguments, not {}", callee_name, names.size(),
                           arguments.positional.size());
  }
  values_.resize(names.size());
  for (size_t i = 0; i < arguments.positional.size(); ++i) values_[i] = &arguments.positional[i];
  for (const auto& [name, value] : arguments.keyword) {
    const auto index = static_cast<size_t>(std::find(names.begin(), names.end(), name) - names.begin());
    if (index == names.size()) throw evaluation_error("{} takes no argument \"{}\"", callee_name, name);
    if (values_[index] != nullptr)
      throw evaluation_error("{} got multiple values for the argument \"{}\"", callee_name, name);
    values_[index] = &value;
  }
  for (size_t i = 0; i < static_cast<size_t>(parameters.num_required_parameters); ++i) {
    if (values_[i] == nullptr) throw evaluation_error("{} lacks the argument \"{}\"", callee_name, names[i]);
  }
}

const Value* BoundArguments::value_or_null(size_t index) const {
  const Value* value = (*this)[index];
  return value != nullptr && value->is_none() ? nullptr : value;
}

bool BoundArguments::boolean(size_t index, bool fallback) const {
  const Value* value = (*this)[index];
  return value == nullptr ? fallback : is_true(*value);
}

int64_t BoundArguments::integer(size_t index, int64_t fallback) const {
  const Value* value = (*this)[index];
  if (value == nullptr) return fallback;
  int64_t out = 0;
  if (!value->try_to_integer(out))
    throw evaluation_error("{}: expected an integer, not {}", callee_name_, value->type_name());
  return out;
}

const TextValue* BoundArguments::text(size_t index) const {
  const Value* value = value_or_null(index);
  if (value == nullptr) return nullptr;
  if (value->text() == nullptr)
    throw evaluation_error("{}: expected a string, not {}", callee_name_, value->type_name());
  return value->text();
}

const TextValue& BoundArguments::required_text(size_t index) const {
  const TextValue* text_value = text(index);
  if (text_value == nullptr) throw evaluation_error("{}: expected a string, not None", callee_name_);
  return *text_value;
}

Value Object::call(RenderContext& /*context*/, const Arguments& /*arguments*/) {
  throw evaluation_error("a value of type {} is not callable", type_name());
}

std::optional<Value> Namespace::find_attribute(std::string_view name) {
  for (const auto& [key, value] : attributes_) {
    if (key == name) return value;
  }
  return std::nullopt;
}

void Namespace::set(std::string_view name, Value value) {
  if (name.starts_with('_'))
    throw evaluation_error("a namespace cannot have the attribute \"{}\", which begins with an underscore", name);
  for (auto& [key, stored_value] : attributes_) {
    if (key == name) {
      stored_value = std::move(value);
      return;
    }
  }
  attributes_.emplace_back(name, std::move(value));
}

std::vector<Value> Namespace::release_values() {
  std::vector<Value> values;
  for (auto& [key, value] : attributes_) values.push_back(std::move(value));
  attributes_.clear();
  return values;
}

Value Function::call(RenderContext& context, const Arguments& arguments) {
  return implementation_(context, self_, BoundArguments(name_, parameters_, arguments));
}

Value get_attribute(const Value& value, std::string_view name) {
  check_defined(value);
  if (auto attribute = find_attribute(value, name)) return *attribute;
  if (value.dict() != nullptr) {
    if (const Value* item = value.dict()->find(name)) return *item;
  }
  return make_undefined_attribute(value, name);
}

Value get_item(const Value& value, const Value& key, RenderBudget& budget) {
  check_defined(value);
  if (auto item = find_item(value, key, budget)) return *item;
  if (key.text() != nullptr) {
    if (auto attribute = find_attribute(value, key.text()->view())) return *attribute;
    return make_undefined_attribute(value, key.text()->view());
  }
  TextWithOrigins key_repr;
  if (key.is_undefined() || key.is_none() || to_number(key)) append_repr(key_repr, key, budget);
  return Value::undefined(fmt::format("{} has no element {}", value.type_name(), key_repr.bytes()));
}

Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, RenderBudget& budget) {
  check_defined(value);
  if (value.text() != nullptr) {
    return slice_text(*value.text(),
                      compute_slice_indices(static_cast<int64_t>(value.text()->length), begin, end, step), budget);
  }
  if (value.sequence() == nullptr || !value.sequence()->is_indexable()) {
    throw evaluation_error("a value of type {} cannot be sliced", value.type_name());
  }
  const std::vector<Value>& items = value.sequence()->items;
  const SliceIndices slice = compute_slice_indices(static_cast<int64_t>(items.size()), begin, end, step);
  budget.charge_allocation(static_cast<size_t>(slice.count) * sizeof(Value));
  std::vector<Value> sliced_items;
  sliced_items.reserve(static_cast<size_t>(slice.count));
  for (int64_t i = 0; i < slice.count; ++i)
    sliced_items.push_back(items[static_cast<size_t>(slice.begin + i * slice.step)]);
  return Value(std::make_shared<const Sequence>(value.sequence()->type, std::move(sliced_items)));
}

Value get_item_at_path(const Value& value, const Value& path, RenderBudget& budget) {
  if (path.is_none()) return value;
  if (path.text() == nullptr) return get_item(value, path, budget);
  Value current_item = value;
  for (std::string_view remaining = path.text()->view();;) {
    const size_t end = std::min(remaining.find('.'), remaining.size());
    const std::string_view name = remaining.substr(0, end);
    const bool is_number = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    const auto number = is_number ? parse_int(name, 10) : std::nullopt;
    current_item = get_item(current_item, number ? Value(*number) : Value::text(std::string(name)), budget);
    if (end == remaining.size()) return current_item;
    remaining.remove_prefix(end + 1);
  }
}

}  // namespace vlmtrain::text::jinja

#include <algorithm>
#include <array>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"
#include "text/jinja/runtime/python_text.h"

namespace vlmtrain::text::jinja {
namespace {

/// Returns a text in lowercase unless `case_sensitive` is set. Returns other values unchanged.
Value fold_case(const Value& value, bool case_sensitive, RenderBudget& budget) {
  if (case_sensitive || value.text() == nullptr) return value;
  budget.charge_allocation(value.text()->view().size());
  return Value::text(to_lower(value.text()->content));
}

/// An item with its sort key.
struct KeyedItem {
  Value key;
  Value item;
};

/// Returns the items of `value`. The key of an item is its attribute `attribute_path`, or the item
/// itself if the path is null. `fallback`, if not null, replaces undefined keys.
std::vector<KeyedItem> make_keyed_items(RenderContext& context, const Value& value, const Value* attribute_path,
                                        bool case_sensitive, const Value* fallback = nullptr) {
  const auto items = to_sequence(value, context.budget);
  context.budget.charge_allocation(items->items.size() * sizeof(KeyedItem));
  std::vector<KeyedItem> keyed_items;
  keyed_items.reserve(items->items.size());
  for (const Value& item : items->items) {
    Value key = attribute_path != nullptr ? get_item_at_path(item, *attribute_path, context.budget) : item;
    if (key.is_undefined() && fallback != nullptr) key = *fallback;
    keyed_items.push_back({fold_case(key, case_sensitive, context.budget), item});
  }
  return keyed_items;
}

/// Sorts stably by key, in descending order with `reverse`.
void sort_by_key(std::vector<KeyedItem>& keyed_items, bool reverse, RenderBudget& budget) {
  std::stable_sort(keyed_items.begin(), keyed_items.end(), [&](const KeyedItem& left, const KeyedItem& right) {
    return reverse ? is_less(right.key, left.key, budget) : is_less(left.key, right.key, budget);
  });
}

/// Returns the items without their keys.
std::vector<Value> remove_sort_keys(std::vector<KeyedItem> keyed_items) {
  std::vector<Value> items;
  items.reserve(keyed_items.size());
  for (KeyedItem& keyed_item : keyed_items) items.push_back(std::move(keyed_item.item));
  return items;
}

Value sort_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const bool reverse = args.boolean(0, false);
  const bool case_sensitive = args.boolean(1, false);
  const Value* attribute_path = args.value_or_null(2);
  if (attribute_path == nullptr || attribute_path->text() == nullptr ||
      attribute_path->text()->view().find(',') == std::string_view::npos) {
    std::vector<KeyedItem> keyed_items = make_keyed_items(context, value, attribute_path, case_sensitive);
    sort_by_key(keyed_items, reverse, context.budget);
    return Value::list(remove_sort_keys(std::move(keyed_items)));
  }
  // Several attributes: the key is a list of their values, because lists compare item by item.
  std::vector<KeyedItem> keyed_items = make_keyed_items(context, value, nullptr, true);
  for (KeyedItem& keyed_item : keyed_items) {
    std::vector<Value> keys;
    for (std::string_view remaining = attribute_path->text()->view();;) {
      const size_t end = std::min(remaining.find(','), remaining.size());
      const Value attribute_name = Value::text(std::string(remaining.substr(0, end)));
      keys.push_back(
          fold_case(get_item_at_path(keyed_item.item, attribute_name, context.budget), case_sensitive, context.budget));
      if (end == remaining.size()) break;
      remaining.remove_prefix(end + 1);
    }
    keyed_item.key = Value::list(std::move(keys));
  }
  sort_by_key(keyed_items, reverse, context.budget);
  return Value::list(remove_sort_keys(std::move(keyed_items)));
}

Value unique_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  std::vector<Value> unique_keys;
  std::vector<Value> items;
  for (KeyedItem& keyed_item : make_keyed_items(context, value, args.value_or_null(1), args.boolean(0, false))) {
    const bool is_duplicate = std::any_of(unique_keys.begin(), unique_keys.end(), [&](const Value& key) {
      return is_equal(key, keyed_item.key, context.budget);
    });
    if (is_duplicate) continue;
    unique_keys.push_back(std::move(keyed_item.key));
    items.push_back(std::move(keyed_item.item));
  }
  return make_generator(std::move(items));
}

template <bool is_max>
Value min_max_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const std::vector<KeyedItem> keyed_items =
      make_keyed_items(context, value, args.value_or_null(1), args.boolean(0, false));
  if (keyed_items.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const KeyedItem* extremum = &keyed_items[0];
  for (const KeyedItem& keyed_item : keyed_items) {
    if (&keyed_item == extremum) continue;
    const bool is_new_extremum = is_max ? is_less(extremum->key, keyed_item.key, context.budget)
                                        : is_less(keyed_item.key, extremum->key, context.budget);
    if (is_new_extremum) extremum = &keyed_item;
  }
  return extremum->item;
}

Value groupby_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const bool case_sensitive = args.boolean(2, false);
  const Value* fallback = args.value_or_null(1);
  std::vector<KeyedItem> keyed_items = make_keyed_items(context, value, args[0], case_sensitive, fallback);
  sort_by_key(keyed_items, false, context.budget);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed_items.size(); begin = end) {
    std::vector<Value> items;
    for (end = begin;
         end < keyed_items.size() && is_equal(keyed_items[end].key, keyed_items[begin].key, context.budget); ++end) {
      items.push_back(keyed_items[end].item);
    }
    // NaN is not equal to itself; the loop would not end.
    if (end == begin) throw evaluation_error("groupby: a key is not equal to itself");
    // The key of the first item with its original case.
    Value key = make_keyed_items(context, Value::list({items[0]}), args[0], true, fallback)[0].key;
    Sequence group(Sequence::Type::kTuple, {std::move(key), Value::list(std::move(items))});
    group.is_groupby_item = true;
    groups.emplace_back(std::make_shared<const Sequence>(std::move(group)));
  }
  return Value::list(std::move(groups));
}

Value dictsort_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  if (value.dict() == nullptr) throw evaluation_error("dictsort needs a dict, not {}", value.type_name());
  const std::string_view sort_field = args[1] != nullptr ? args.required_text(1).view() : "key";
  if (sort_field != "key" && sort_field != "value") throw evaluation_error("dictsort sorts by \"key\" or \"value\"");
  std::vector<KeyedItem> keyed_items;
  for (const auto& [key, item] : value.dict()->entries) {
    keyed_items.push_back({fold_case(sort_field == "key" ? key : item, args.boolean(0, false), context.budget),
                           Value::tuple({key, item})});
  }
  sort_by_key(keyed_items, args.boolean(2, false), context.budget);
  return Value::list(remove_sort_keys(std::move(keyed_items)));
}

Value sum_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  Value sum = args[1] != nullptr ? *args[1] : Value(0);
  if (sum.text() != nullptr) throw evaluation_error("sum cannot start with a string; use join");
  for (const KeyedItem& keyed_item : make_keyed_items(context, value, args.value_or_null(0), true)) {
    sum = apply_binary_operator(BinaryOperator::kAdd, sum, keyed_item.key, context.budget);
  }
  return sum;
}

Value length_filter(RenderContext& /*context*/, const Value& value, const BoundArguments& /*args*/) {
  return Value(get_length(value));
}

Value first_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  if (value.text() != nullptr && !value.text()->view().empty()) return get_item(value, Value(0), context.budget);
  const auto items = to_sequence(value, context.budget);
  return items->items.empty() ? Value::undefined("No first item, sequence was empty.") : items->items.front();
}

/// Throws EvaluationError if `value` is a generator.
void check_reversible(const Value& value) {
  if (value.sequence() != nullptr && !value.sequence()->has_length()) {
    throw evaluation_error("a generator cannot be reversed; convert it to a list");
  }
}

Value last_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  check_reversible(value);
  if (value.text() != nullptr && !value.text()->view().empty()) return get_item(value, Value(-1), context.budget);
  const auto items = to_sequence(value, context.budget);
  return items->items.empty() ? Value::undefined("No last item, sequence was empty.") : items->items.back();
}

Value list_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  const auto items = to_sequence(value, context.budget);
  if (items->type == Sequence::Type::kList) return Value(items);
  context.budget.charge_allocation(items->items.size() * sizeof(Value));
  return Value::list(items->items);
}

Value reverse_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  if (value.text() != nullptr) return get_slice(value, Value::none(), Value::none(), Value(-1), context.budget);
  const auto items = to_sequence(value, context.budget);
  context.budget.charge_allocation(items->items.size() * sizeof(Value));
  std::vector<Value> reversed_items(items->items.rbegin(), items->items.rend());
  const bool is_generator = value.sequence() != nullptr && !value.sequence()->has_length();
  // As in Jinja2, which cannot reverse a generator and makes a list first.
  return is_generator ? Value::list(std::move(reversed_items)) : make_generator(std::move(reversed_items));
}

Value items_filter(RenderContext& context, const Value& value, const BoundArguments& /*args*/) {
  if (value.is_undefined()) return make_generator({});
  if (value.dict() == nullptr) throw evaluation_error("items needs a dict, not {}", value.type_name());
  context.budget.charge_allocation(value.dict()->entries.size() * sizeof(Value) * 4);
  std::vector<Value> pairs;
  for (const auto& [key, item] : value.dict()->entries) pairs.push_back(Value::tuple({key, item}));
  return make_generator(std::move(pairs));
}

Value batch_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const auto items = to_sequence(value, context.budget);
  const int64_t batch_size = args.integer(0, 1);
  context.budget.charge_allocation(items->items.size() * sizeof(Value) * 2);
  std::vector<Value> batches;
  std::vector<Value> batch;
  const auto flush_batch = [&] { batches.push_back(Value::list(std::exchange(batch, {}))); };
  for (size_t i = 0; i < items->items.size(); ++i) {
    // As in Jinja2, the comparison precedes the append, so a negative count gives one batch.
    if (static_cast<int64_t>(batch.size()) == batch_size) flush_batch();
    batch.push_back(items->items[i]);
  }
  if (!batch.empty()) {
    if (args.value_or_null(1) != nullptr && batch_size > static_cast<int64_t>(batch.size())) {
      context.budget.charge_allocation(static_cast<size_t>(batch_size) > kMaxTextBytes
                                           ? kMaxTextBytes + 1
                                           : static_cast<size_t>(batch_size) * sizeof(Value));
      batch.resize(static_cast<size_t>(batch_size), *args[1]);
    }
    flush_batch();
  }
  return make_generator(std::move(batches));
}

Value slice_filter(RenderContext& context, const Value& value, const BoundArguments& args) {
  const auto items = to_sequence(value, context.budget);
  const int64_t num_slices = args.integer(0, 1);
  if (num_slices == 0) throw evaluation_error("slice: the number of slices must be at least 1");
  if (num_slices > static_cast<int64_t>(kMaxRangeItems))
    throw evaluation_error("slice: more than {} slices", kMaxRangeItems);
  const auto size = static_cast<int64_t>(items->items.size());
  context.budget.charge_allocation((static_cast<size_t>(size) + static_cast<size_t>(std::max<int64_t>(num_slices, 0))) *
                                   sizeof(Value) * 2);
  std::vector<Value> slice_lists;
  auto pos = items->items.begin();
  for (int64_t i = 0; i < num_slices; ++i) {
    const bool has_extra_item = i < size % num_slices;
    const auto end = pos + size / num_slices + (has_extra_item ? 1 : 0);
    std::vector<Value> slice_items(pos, end);
    if (args.value_or_null(1) != nullptr && !has_extra_item) slice_items.push_back(*args[1]);
    slice_lists.push_back(Value::list(std::move(slice_items)));
    pos = end;
  }
  return make_generator(std::move(slice_lists));
}

Value default_filter(RenderContext& /*context*/, const Value& value, const BoundArguments& args) {
  const bool uses_default = value.is_undefined() || (args.boolean(1, false) && !is_true(value));
  if (!uses_default) return value;
  return args[0] != nullptr ? *args[0] : Value::text("");
}

constexpr std::array kListFilters = {
    Builtin{"batch", {"linecount fill_with", 1}, batch_filter},
    Builtin{"count", {""}, length_filter},
    Builtin{"d", {"default_value boolean"}, default_filter},
    Builtin{"default", {"default_value boolean"}, default_filter},
    Builtin{"dictsort", {"case_sensitive by reverse"}, dictsort_filter},
    Builtin{"first", {""}, first_filter},
    Builtin{"groupby", {"attribute default case_sensitive", 1}, groupby_filter},
    Builtin{"items", {""}, items_filter},
    Builtin{"last", {""}, last_filter},
    Builtin{"length", {""}, length_filter},
    Builtin{"list", {""}, list_filter},
    Builtin{"max", {"case_sensitive attribute"}, min_max_filter<true>},
    Builtin{"min", {"case_sensitive attribute"}, min_max_filter<false>},
    Builtin{"reverse", {""}, reverse_filter},
    Builtin{"slice", {"slices fill_with", 1}, slice_filter},
    Builtin{"sort", {"reverse case_sensitive attribute"}, sort_filter},
    Builtin{"sum", {"attribute start"}, sum_filter},
    Builtin{"unique", {"case_sensitive attribute"}, unique_filter},
};

}  // namespace

std::span<const Builtin> get_list_filters() {
  return kListFilters;
}

}  // namespace vlmtrain::text::jinja

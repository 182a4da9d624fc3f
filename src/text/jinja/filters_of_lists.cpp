#include <algorithm>
#include <array>

#include "text/jinja/access.h"
#include "text/jinja/callables.h"
#include "text/jinja/letters.h"
#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {
namespace {

/// A text as what sorts without regard to case, anything else as it is.
Value without_case(const Value& value, bool case_sensitive, Budget& budget) {
  if (case_sensitive || value.text() == nullptr) return value;
  budget.made(value.text()->view().size());
  return Value::text(lowercase(value.text()->marked));
}

/// An item and what it is sorted by.
struct Keyed {
  Value key;
  Value item;
};

/// The items of `value` by the attribute that `path` names (null: themselves).
std::vector<Keyed> keyed_items(Context& context, const Value& value, const Value* path, bool case_sensitive,
                               const Value* fallback = nullptr) {
  const auto items = items_of(value, context.budget);
  context.budget.made(items->items.size() * sizeof(Keyed));
  std::vector<Keyed> keyed;
  keyed.reserve(items->items.size());
  for (const Value& item : items->items) {
    Value key = path != nullptr ? get_path(item, *path, context.budget) : item;
    if (key.is_undefined() && fallback != nullptr) key = *fallback;
    keyed.push_back({without_case(key, case_sensitive, context.budget), item});
  }
  return keyed;
}

void sort_by_key(std::vector<Keyed>& keyed, bool backwards, Budget& budget) {
  std::stable_sort(keyed.begin(), keyed.end(), [&](const Keyed& a, const Keyed& b) {
    return backwards ? is_less(b.key, a.key, budget) : is_less(a.key, b.key, budget);
  });
}

std::vector<Value> items_without_keys(std::vector<Keyed> keyed) {
  std::vector<Value> items;
  items.reserve(keyed.size());
  for (Keyed& entry : keyed) items.push_back(std::move(entry.item));
  return items;
}

Value sort_filter(Context& context, const Value& value, const Bound& given) {
  const bool backwards = given.flag(0, false);
  const bool case_sensitive = given.flag(1, false);
  const Value* path = given.given(2);
  if (path == nullptr || path->text() == nullptr || path->text()->view().find(',') == std::string_view::npos) {
    std::vector<Keyed> keyed = keyed_items(context, value, path, case_sensitive);
    sort_by_key(keyed, backwards, context.budget);
    return Value::list(items_without_keys(std::move(keyed)));
  }
  // By several attributes: lists of keys sort as Python has them.
  std::vector<Keyed> keyed = keyed_items(context, value, nullptr, true);
  for (Keyed& entry : keyed) {
    std::vector<Value> keys;
    for (std::string_view rest = path->text()->view();;) {
      const size_t end = std::min(rest.find(','), rest.size());
      const Value part = Value::text(std::string(rest.substr(0, end)));
      keys.push_back(without_case(get_path(entry.item, part, context.budget), case_sensitive, context.budget));
      if (end == rest.size()) break;
      rest.remove_prefix(end + 1);
    }
    entry.key = Value::list(std::move(keys));
  }
  sort_by_key(keyed, backwards, context.budget);
  return Value::list(items_without_keys(std::move(keyed)));
}

Value unique_filter(Context& context, const Value& value, const Bound& given) {
  std::vector<Value> seen;
  std::vector<Value> items;
  for (Keyed& entry : keyed_items(context, value, given.given(1), given.flag(0, false))) {
    const bool is_known = std::any_of(seen.begin(), seen.end(),
                                      [&](const Value& key) { return is_equal(key, entry.key, context.budget); });
    if (is_known) continue;
    seen.push_back(std::move(entry.key));
    items.push_back(std::move(entry.item));
  }
  return generator_of(std::move(items));
}

template <bool greatest>
Value extreme_filter(Context& context, const Value& value, const Bound& given) {
  const std::vector<Keyed> keyed = keyed_items(context, value, given.given(1), given.flag(0, false));
  if (keyed.empty()) return Value::undefined("No aggregated item, sequence was empty.");
  const Keyed* best = &keyed[0];
  for (const Keyed& entry : keyed) {
    if (&entry == best) continue;
    const bool better =
        greatest ? is_less(best->key, entry.key, context.budget) : is_less(entry.key, best->key, context.budget);
    if (better) best = &entry;
  }
  return best->item;
}

Value groupby_filter(Context& context, const Value& value, const Bound& given) {
  const bool case_sensitive = given.flag(2, false);
  const Value* fallback = given.given(1);
  std::vector<Keyed> keyed = keyed_items(context, value, given[0], case_sensitive, fallback);
  sort_by_key(keyed, false, context.budget);
  std::vector<Value> groups;
  for (size_t begin = 0, end = 0; begin < keyed.size(); begin = end) {
    std::vector<Value> items;
    for (end = begin; end < keyed.size() && is_equal(keyed[end].key, keyed[begin].key, context.budget); ++end) {
      items.push_back(keyed[end].item);
    }
    if (end == begin) throw failure("groupby: a key does not equal itself");
    Value key = keyed_items(context, Value::list({items[0]}), given[0], true, fallback)[0].key;
    Sequence group(Sequence::Form::kTuple, {std::move(key), Value::list(std::move(items))});
    group.is_group = true;
    groups.push_back(Value(std::make_shared<const Sequence>(std::move(group))));
  }
  return Value::list(std::move(groups));
}

Value dictsort_filter(Context& context, const Value& value, const Bound& given) {
  if (value.dict() == nullptr) throw failure("dictsort needs a dict, not {}", value.type_name());
  const std::string_view by = given[1] != nullptr ? given.needed_text(1).view() : "key";
  if (by != "key" && by != "value") throw failure("dictsort sorts by \"key\" or \"value\"");
  std::vector<Keyed> keyed;
  for (const auto& [key, item] : value.dict()->entries) {
    keyed.push_back(
        {without_case(by == "key" ? key : item, given.flag(0, false), context.budget), Value::tuple({key, item})});
  }
  sort_by_key(keyed, given.flag(2, false), context.budget);
  return Value::list(items_without_keys(std::move(keyed)));
}

Value sum_filter(Context& context, const Value& value, const Bound& given) {
  Value sum = given[1] != nullptr ? *given[1] : Value(0);
  if (sum.text() != nullptr) throw failure("sum cannot begin with a text; use join");
  for (const Keyed& entry : keyed_items(context, value, given.given(0), true)) {
    sum = calculate(Binary::kAdd, sum, entry.key, context.budget);
  }
  return sum;
}

Value length_filter(Context& /*context*/, const Value& value, const Bound& /*given*/) {
  return Value(length_of(value));
}

Value first_filter(Context& context, const Value& value, const Bound& /*given*/) {
  if (value.text() != nullptr && !value.text()->view().empty()) return get_item(value, Value(0), context.budget);
  const auto items = items_of(value, context.budget);
  return items->items.empty() ? Value::undefined("No first item, sequence was empty.") : items->items.front();
}

void need_reversible(const Value& value) {
  if (value.sequence() != nullptr && !value.sequence()->has_length()) {
    throw failure("a generator cannot be read from its end; make a list of it");
  }
}

Value last_filter(Context& context, const Value& value, const Bound& /*given*/) {
  need_reversible(value);
  if (value.text() != nullptr && !value.text()->view().empty()) return get_item(value, Value(-1), context.budget);
  const auto items = items_of(value, context.budget);
  return items->items.empty() ? Value::undefined("No last item, sequence was empty.") : items->items.back();
}

Value list_filter(Context& context, const Value& value, const Bound& /*given*/) {
  const auto items = items_of(value, context.budget);
  if (items->form == Sequence::Form::kList) return Value(items);
  context.budget.made(items->items.size() * sizeof(Value));
  return Value::list(items->items);
}

Value reverse_filter(Context& context, const Value& value, const Bound& /*given*/) {
  if (value.text() != nullptr) return get_slice(value, Value::none(), Value::none(), Value(-1), context.budget);
  const auto items = items_of(value, context.budget);
  context.budget.made(items->items.size() * sizeof(Value));
  std::vector<Value> reversed(items->items.rbegin(), items->items.rend());
  const bool was_generator = value.sequence() != nullptr && !value.sequence()->has_length();
  return was_generator ? Value::list(std::move(reversed)) : generator_of(std::move(reversed));
}

Value items_filter(Context& context, const Value& value, const Bound& /*given*/) {
  if (value.is_undefined()) return generator_of({});
  if (value.dict() == nullptr) throw failure("items needs a dict, not {}", value.type_name());
  context.budget.made(value.dict()->entries.size() * sizeof(Value) * 4);
  std::vector<Value> pairs;
  for (const auto& [key, item] : value.dict()->entries) pairs.push_back(Value::tuple({key, item}));
  return generator_of(std::move(pairs));
}

Value batch_filter(Context& context, const Value& value, const Bound& given) {
  const auto items = items_of(value, context.budget);
  const int64_t count = given.whole(0, 1);
  context.budget.made(items->items.size() * sizeof(Value) * 2);
  std::vector<Value> batches;
  std::vector<Value> batch;
  const auto put_batch = [&] { batches.push_back(Value::list(std::exchange(batch, {}))); };
  for (size_t i = 0; i < items->items.size(); ++i) {
    // Python compares before it adds: a count that is never reached makes one batch.
    if (static_cast<int64_t>(batch.size()) == count) put_batch();
    batch.push_back(items->items[i]);
  }
  if (!batch.empty()) {
    if (given.given(1) != nullptr && count > static_cast<int64_t>(batch.size())) {
      context.budget.made(static_cast<size_t>(count) > kMaxTextBytes ? kMaxTextBytes + 1
                                                                     : static_cast<size_t>(count) * sizeof(Value));
      batch.resize(static_cast<size_t>(count), *given[1]);
    }
    put_batch();
  }
  return generator_of(std::move(batches));
}

Value slice_filter(Context& context, const Value& value, const Bound& given) {
  const auto items = items_of(value, context.budget);
  const int64_t slices = given.whole(0, 1);
  if (slices == 0) throw failure("slice: there must be a slice");
  if (slices > static_cast<int64_t>(kMaxRangeItems)) throw failure("slice: more than {} slices", kMaxRangeItems);
  const auto size = static_cast<int64_t>(items->items.size());
  context.budget.made((static_cast<size_t>(size) + static_cast<size_t>(std::max<int64_t>(slices, 0))) * sizeof(Value) *
                      2);
  std::vector<Value> parts;
  auto at = items->items.begin();
  for (int64_t i = 0; i < slices; ++i) {
    const bool has_more = i < size % slices;
    const auto end = at + size / slices + (has_more ? 1 : 0);
    std::vector<Value> part(at, end);
    if (given.given(1) != nullptr && !has_more) part.push_back(*given[1]);
    parts.push_back(Value::list(std::move(part)));
    at = end;
  }
  return generator_of(std::move(parts));
}

Value default_filter(Context& /*context*/, const Value& value, const Bound& given) {
  const bool replaces = value.is_undefined() || (given.flag(1, false) && !is_true(value));
  if (!replaces) return value;
  return given[0] != nullptr ? *given[0] : Value::text("");
}

constexpr std::array kFiltersOfLists = {
    Method{"batch", {"linecount fill_with", 1}, batch_filter},
    Method{"count", {""}, length_filter},
    Method{"d", {"default_value boolean"}, default_filter},
    Method{"default", {"default_value boolean"}, default_filter},
    Method{"dictsort", {"case_sensitive by reverse"}, dictsort_filter},
    Method{"first", {""}, first_filter},
    Method{"groupby", {"attribute default case_sensitive", 1}, groupby_filter},
    Method{"items", {""}, items_filter},
    Method{"last", {""}, last_filter},
    Method{"length", {""}, length_filter},
    Method{"list", {""}, list_filter},
    Method{"max", {"case_sensitive attribute"}, extreme_filter<true>},
    Method{"min", {"case_sensitive attribute"}, extreme_filter<false>},
    Method{"reverse", {""}, reverse_filter},
    Method{"slice", {"slices fill_with", 1}, slice_filter},
    Method{"sort", {"reverse case_sensitive attribute"}, sort_filter},
    Method{"sum", {"attribute start"}, sum_filter},
    Method{"unique", {"case_sensitive attribute"}, unique_filter},
};

}  // namespace

std::span<const Method> filters_of_lists() {
  return kFiltersOfLists;
}

}  // namespace vlmtrain::text::jinja

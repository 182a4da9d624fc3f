#include <array>

#include "text/jinja/access.h"
#include "text/jinja/callables.h"
#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {
namespace {

/// The arguments from the one at `index` on.
Arguments rest_of(const Arguments& arguments, size_t index) {
  Arguments rest;
  rest.positional.assign(arguments.positional.begin() + static_cast<std::ptrdiff_t>(index), arguments.positional.end());
  rest.keyword = arguments.keyword;
  return rest;
}

/// select, reject, selectattr and rejectattr: those items for which the test that is named holds, or is_true.
template <bool wanted, bool by_attribute>
Value choose_filter(Context& context, const Value& value, const Bound& given) {
  const Arguments& all = given.all();
  if (!is_true(value)) return generator_of({});
  constexpr size_t kName = by_attribute ? 1 : 0;
  if (all.positional.size() < kName) throw failure("selectattr and rejectattr need the name of an attribute");
  const Method* test = nullptr;
  Arguments arguments;
  if (all.positional.size() > kName) {
    const Text* name = all.positional[kName].text();
    test = name != nullptr ? find_test(name->view()) : nullptr;
    if (test == nullptr) throw failure("there is no test \"{}\"", name != nullptr ? name->view() : "");
    arguments = rest_of(all, kName + 1);
  }
  std::vector<Value> chosen;
  const auto all_items = items_of(value, context.budget);
  for (const Value& item : all_items->items) {
    const Value tested = by_attribute ? get_path(item, all.positional[0], context.budget) : item;
    const bool holds = test != nullptr ? is_true(apply(context, *test, tested, arguments)) : is_true(tested);
    if (holds == wanted) chosen.push_back(item);
  }
  context.budget.made(chosen.size() * sizeof(Value));
  return generator_of(std::move(chosen));
}

const Value* keyword_of(const Arguments& arguments, std::string_view name) {
  for (const auto& [key, value] : arguments.keyword) {
    if (key == name) return &value;
  }
  return nullptr;
}

/// map(attribute=…, default=…).
std::vector<Value> attributes_of(Context& context, const Sequence& items, const Arguments& all) {
  const Value* path = keyword_of(all, "attribute");
  const Value* fallback = keyword_of(all, "default");
  if (all.keyword.size() > (fallback != nullptr ? 2U : 1U)) throw failure("map takes attribute and default by name");
  std::vector<Value> mapped;
  for (const Value& item : items.items) {
    Value found = get_path(item, *path, context.budget);
    if (found.is_undefined() && fallback != nullptr && !fallback->is_none()) found = *fallback;
    mapped.push_back(std::move(found));
  }
  return mapped;
}

Value map_filter(Context& context, const Value& value, const Bound& given) {
  const Arguments& all = given.all();
  if (!is_true(value)) return generator_of({});
  const auto items = items_of(value, context.budget);
  context.budget.made(items->items.size() * sizeof(Value));
  if (all.positional.empty() && keyword_of(all, "attribute") != nullptr) {
    return generator_of(attributes_of(context, *items, all));
  }
  const Text* name = all.positional.empty() ? nullptr : all.positional[0].text();
  const Method* filter = name != nullptr ? find_filter(name->view()) : nullptr;
  if (filter == nullptr) throw failure("map: there is no filter \"{}\"", name != nullptr ? name->view() : "");
  const Arguments arguments = rest_of(all, 1);
  std::vector<Value> mapped;
  for (const Value& item : items->items) mapped.push_back(apply(context, *filter, item, arguments));
  return generator_of(std::move(mapped));
}

Value attr_filter(Context& /*context*/, const Value& value, const Bound& given) {
  const std::string_view name = given.needed_text(0).view();
  if (value.dict() != nullptr) return Value::undefined(fmt::format("'dict object' has no attribute '{}'", name));
  return get_attribute(value, name);
}

constexpr std::array kFiltersThatChoose = {
    Method{"attr", {"name", 1}, attr_filter},
    Method{"map", {"*"}, map_filter},
    Method{"reject", {"*"}, choose_filter<false, false>},
    Method{"rejectattr", {"*"}, choose_filter<false, true>},
    Method{"select", {"*"}, choose_filter<true, false>},
    Method{"selectattr", {"*"}, choose_filter<true, true>},
};

}  // namespace

std::span<const Method> filters_that_choose() {
  return kFiltersThatChoose;
}

}  // namespace vlmtrain::text::jinja

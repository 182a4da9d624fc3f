#include <array>

#include "text/jinja/builtins/builtins.h"
#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {
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
    if (test == nullptr) throw evaluation_error("no test named \"{}\"", name != nullptr ? name->view() : "");
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
  if (filter == nullptr) throw evaluation_error("map: no filter named \"{}\"", name != nullptr ? name->view() : "");
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

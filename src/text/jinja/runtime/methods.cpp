#include <algorithm>
#include <array>

#include "text/jinja/runtime/object.h"
#include "text/jinja/runtime/operators.h"

namespace vlmtrain::text::jinja {
namespace {

/// Methods of Python's str and dict that are not supported.
constexpr std::array kUnsupportedTextMethods = {"casefold", "encode",    "expandtabs", "format_map",
                                                "istitle",  "maketrans", "translate"};
constexpr std::array kUnsupportedDictMethods = {"fromkeys"};
/// Methods that modify a value, which Jinja2's ImmutableSandboxedEnvironment hides.
constexpr std::array kMutatingDictMethods = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array kMutatingListMethods = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

/// Returns whether `names` contains `name`.
template <class Names>
bool contains_name(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// Returns the method `name`, or null.
const Builtin* find_method_by_name(std::span<const Builtin> table, std::string_view name) {
  const auto match =
      std::find_if(table.begin(), table.end(), [&](const Builtin& method) { return method.name == name; });
  return match == table.end() ? nullptr : &*match;
}

/// Returns dict.keys(), dict.values() or dict.items(), depending on `type`.
std::shared_ptr<Sequence> make_dict_view(Sequence::Type type, const Dict& dict, RenderBudget& budget) {
  budget.charge_allocation(dict.entries.size() * sizeof(Value) * (type == Sequence::Type::kItems ? 4 : 1));
  std::vector<Value> items;
  items.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    items.push_back(type == Sequence::Type::kKeys     ? key
                    : type == Sequence::Type::kValues ? value
                                                      : Value::tuple({key, value}));
  }
  return std::make_shared<Sequence>(type, std::move(items));
}

template <Sequence::Type type>
Value dict_view_method(RenderContext& context, const Value& self, const BoundArguments& /*args*/) {
  return Value(std::shared_ptr<const Sequence>(make_dict_view(type, *self.dict(), context.budget)));
}

Value dict_get_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  context.budget.charge_scan(self.dict()->entries.size());
  if (args[0]->sequence() != nullptr || args[0]->dict() != nullptr)
    throw evaluation_error("unhashable key of type {}", args[0]->type_name());
  const Value* entry_value = self.dict()->find(*args[0]);
  if (entry_value != nullptr) return *entry_value;
  return args[1] != nullptr ? *args[1] : Value::none();
}

/// Returns the value itself, because values are immutable.
Value copy_method(RenderContext& /*context*/, const Value& self, const BoundArguments& /*args*/) {
  return self;
}

Value list_count_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const std::vector<Value>& items = self.sequence()->items;
  return Value(std::count_if(items.begin(), items.end(),
                             [&](const Value& item) { return is_equal(item, *args[0], context.budget); }));
}

Value list_index_method(RenderContext& context, const Value& self, const BoundArguments& args) {
  const std::vector<Value>& items = self.sequence()->items;
  const auto resolve_index = [&](size_t argument_index, int64_t fallback) {
    const int64_t pos = args.integer(argument_index, fallback);
    const auto count = static_cast<int64_t>(items.size());
    return std::clamp<int64_t>(pos < 0 ? pos + count : pos, 0, count);
  };
  const int64_t end = resolve_index(2, static_cast<int64_t>(items.size()));
  for (int64_t i = resolve_index(1, 0); i < end; ++i) {
    if (is_equal(items[static_cast<size_t>(i)], *args[0], context.budget)) return Value(i);
  }
  throw evaluation_error("index(): the value is not in the list");
}

constexpr std::array kDictMethods = {
    Builtin{"copy", {""}, copy_method},
    Builtin{"get", {"key default", 1}, dict_get_method},
    Builtin{"items", {""}, dict_view_method<Sequence::Type::kItems>},
    Builtin{"keys", {""}, dict_view_method<Sequence::Type::kKeys>},
    Builtin{"values", {""}, dict_view_method<Sequence::Type::kValues>},
};

constexpr std::array kListMethods = {
    Builtin{"copy", {""}, copy_method},
    Builtin{"count", {"value", 1}, list_count_method},
    Builtin{"index", {"value start stop", 1}, list_index_method},
};

}  // namespace

std::span<const Builtin> get_dict_methods() {
  return kDictMethods;
}
std::span<const Builtin> get_list_methods() {
  return kListMethods;
}

std::optional<Value> find_bound_method(const Value& value, std::string_view name) {
  std::span<const Builtin> table;
  bool is_unsupported_name = false;
  bool is_mutating_method = false;
  if (value.text() != nullptr) {
    table = get_text_methods();
    is_unsupported_name = contains_name(kUnsupportedTextMethods, name);
  } else if (value.dict() != nullptr) {
    table = get_dict_methods();
    is_unsupported_name = contains_name(kUnsupportedDictMethods, name);
    is_mutating_method = contains_name(kMutatingDictMethods, name);
  } else if (value.sequence() != nullptr && value.sequence()->is_indexable()) {
    const Sequence::Type type = value.sequence()->type;
    is_mutating_method = type == Sequence::Type::kList && contains_name(kMutatingListMethods, name);
    // Tuples and ranges have no copy().
    if (type == Sequence::Type::kList || name != "copy") table = get_list_methods();
  }
  if (is_mutating_method)
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, value.type_name()));
  if (is_unsupported_name) throw evaluation_error("the method {} of {} is not supported", name, value.type_name());
  const Builtin* method = find_method_by_name(table, name);
  if (method == nullptr) return std::nullopt;
  return Value(std::shared_ptr<Object>(
      std::make_shared<Function>(method->name, method->parameters, method->implementation, value)));
}

bool is_unsupported_method(std::string_view name) {
  return contains_name(kUnsupportedTextMethods, name) || contains_name(kUnsupportedDictMethods, name);
}

}  // namespace vlmtrain::text::jinja

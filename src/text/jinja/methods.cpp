#include "text/jinja/methods.h"

#include <algorithm>
#include <array>

#include "text/jinja/method_table.h"
#include "text/jinja/operators.h"

namespace vlmtrain::text::jinja {
namespace {

/// What Python's types have besides the tables.
constexpr std::array kTextsAlsoHave = {"casefold", "encode",    "expandtabs", "format_map",
                                       "istitle",  "maketrans", "translate"};
constexpr std::array kDictsAlsoHave = {"fromkeys"};
/// What changes a value, which the sandbox does not let templates do.
constexpr std::array kChangingDicts = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::array kChangingLists = {"append", "clear", "extend", "insert", "pop", "remove", "reverse", "sort"};

template <class Names>
bool has(const Names& names, std::string_view name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

const Method* find_method(std::span<const Method> table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Method& method) { return method.name == name; });
  return found == table.end() ? nullptr : &*found;
}

std::shared_ptr<Sequence> view_of(Sequence::Form form, const Dict& dict, Budget& budget) {
  budget.made(dict.entries.size() * sizeof(Value) * (form == Sequence::Form::kItems ? 4 : 1));
  std::vector<Value> items;
  items.reserve(dict.entries.size());
  for (const auto& [key, value] : dict.entries) {
    items.push_back(form == Sequence::Form::kKeys     ? key
                    : form == Sequence::Form::kValues ? value
                                                      : Value::tuple({key, value}));
  }
  return std::make_shared<Sequence>(form, std::move(items));
}

template <Sequence::Form form>
Value view_method(Context& context, const Value& self, const Bound& /*given*/) {
  return Value(std::shared_ptr<const Sequence>(view_of(form, *self.dict(), context.budget)));
}

Value get_method(Context& context, const Value& self, const Bound& given) {
  context.budget.walk(self.dict()->entries.size());
  if (given[0]->sequence() != nullptr || given[0]->dict() != nullptr)
    throw failure("a {} is no key", given[0]->type_name());
  const Value* found = self.dict()->find(*given[0]);
  if (found != nullptr) return *found;
  return given[1] != nullptr ? *given[1] : Value::none();
}

Value copy_method(Context& /*context*/, const Value& self, const Bound& /*given*/) {
  return self;
}

Value count_method(Context& context, const Value& self, const Bound& given) {
  const std::vector<Value>& items = self.sequence()->items;
  return Value(std::count_if(items.begin(), items.end(),
                             [&](const Value& item) { return is_equal(item, *given[0], context.budget); }));
}

Value index_method(Context& context, const Value& self, const Bound& given) {
  const std::vector<Value>& items = self.sequence()->items;
  const auto place = [&](size_t argument, int64_t fallback) {
    const int64_t at = given.whole(argument, fallback);
    const auto count = static_cast<int64_t>(items.size());
    return std::clamp<int64_t>(at < 0 ? at + count : at, 0, count);
  };
  const int64_t end = place(2, static_cast<int64_t>(items.size()));
  for (int64_t i = place(1, 0); i < end; ++i) {
    if (is_equal(items[static_cast<size_t>(i)], *given[0], context.budget)) return Value(i);
  }
  throw failure("index(): the value is not in the list");
}

constexpr std::array kDictMethods = {
    Method{"copy", {""}, copy_method},
    Method{"get", {"key default", 1}, get_method},
    Method{"items", {""}, view_method<Sequence::Form::kItems>},
    Method{"keys", {""}, view_method<Sequence::Form::kKeys>},
    Method{"values", {""}, view_method<Sequence::Form::kValues>},
};

constexpr std::array kListMethods = {
    Method{"copy", {""}, copy_method},
    Method{"count", {"value", 1}, count_method},
    Method{"index", {"value start stop", 1}, index_method},
};

}  // namespace

std::span<const Method> methods_of_dicts() {
  return kDictMethods;
}
std::span<const Method> methods_of_lists() {
  return kListMethods;
}

std::optional<Value> method_of(const Value& value, std::string_view name) {
  std::span<const Method> table;
  bool unsupported = false;
  bool unsafe = false;
  if (value.text() != nullptr) {
    table = methods_of_texts();
    unsupported = has(kTextsAlsoHave, name);
  } else if (value.dict() != nullptr) {
    table = methods_of_dicts();
    unsupported = has(kDictsAlsoHave, name);
    unsafe = has(kChangingDicts, name);
  } else if (value.sequence() != nullptr && value.sequence()->can_index()) {
    const Sequence::Form form = value.sequence()->form;
    unsafe = form == Sequence::Form::kList && has(kChangingLists, name);
    if (form == Sequence::Form::kList || name != "copy") table = methods_of_lists();
  }
  if (unsafe)
    return Value::undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, value.type_name()));
  if (unsupported) throw failure("the method {} of {} is not supported", name, value.type_name());
  const Method* method = find_method(table, name);
  if (method == nullptr) return std::nullopt;
  return Value(
      std::shared_ptr<Object>(std::make_shared<Function>(method->name, method->parameters, method->body, value)));
}

bool is_unsupported_method(std::string_view name) {
  return has(kTextsAlsoHave, name) || has(kDictsAlsoHave, name);
}

}  // namespace vlmtrain::text::jinja

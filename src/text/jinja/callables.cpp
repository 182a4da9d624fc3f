#include "text/jinja/callables.h"

#include <algorithm>

namespace vlmtrain::text::jinja {
namespace {

const Method* find_in(std::span<const Method> table, std::string_view name) {
  const auto found =
      std::find_if(table.begin(), table.end(), [&](const Method& method) { return method.name == name; });
  return found == table.end() ? nullptr : &*found;
}

}  // namespace

const Method* find_filter(std::string_view name) {
  for (const auto& table : {filters_of_texts(), filters_of_numbers(), filters_of_lists(), filters_that_choose()}) {
    if (const Method* found = find_in(table, name)) return found;
  }
  return nullptr;
}

const Method* find_test(std::string_view name) {
  return find_in(tests(), name);
}

const Method* find_function(std::string_view name) {
  return find_in(functions(), name);
}

Value apply(Context& context, const Method& method, const Value& self, const Arguments& arguments) {
  context.budget.step();
  return method.body(context, self, Bound(method.name, method.parameters, arguments));
}

Value generator_of(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Form::kGenerator, std::move(items)));
}

}  // namespace vlmtrain::text::jinja

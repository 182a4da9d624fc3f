#include "text/jinja/builtins/builtins.h"

#include <algorithm>

namespace vlmtrain::text::jinja {
namespace {

const Builtin* find_by_name(std::span<const Builtin> table, std::string_view name) {
  const auto match =
      std::find_if(table.begin(), table.end(), [&](const Builtin& builtin) { return builtin.name == name; });
  return match == table.end() ? nullptr : &*match;
}

}  // namespace

const Builtin* find_filter(std::string_view name) {
  for (const auto& table : {text_filters(), number_filters(), list_filters(), select_filters()}) {
    if (const Builtin* builtin = find_by_name(table, name)) return builtin;
  }
  return nullptr;
}

const Builtin* find_test(std::string_view name) {
  return find_by_name(tests(), name);
}

const Builtin* find_function(std::string_view name) {
  return find_by_name(functions(), name);
}

Value apply_builtin(Context& context, const Builtin& builtin, const Value& self, const Arguments& arguments) {
  context.budget.charge_steps();
  return builtin.body(context, self, BoundArguments(builtin.name, builtin.parameters, arguments));
}

Value make_generator(std::vector<Value> items) {
  return Value(std::make_shared<const Sequence>(Sequence::Type::kGenerator, std::move(items)));
}

}  // namespace vlmtrain::text::jinja

#pragma once

#include <span>
#include <string_view>

#include "text/jinja/method_table.h"

namespace vlmtrain::text::jinja {

/// What a template can name: null where there is none of that name. A filter's or test's `self` is what it is applied
/// to; a test gives a boolean.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_function(std::string_view name);

/// As map('name', …) and `value is name(…)` do it.
Value apply_builtin(Context& context, const Builtin& builtin, const Value& self, const Arguments& arguments);

/// Their parts.
std::span<const Builtin> text_filters();
std::span<const Builtin> number_filters();
std::span<const Builtin> list_filters();
std::span<const Builtin> select_filters();
std::span<const Builtin> tests();
std::span<const Builtin> functions();

Value make_generator(std::vector<Value> items);

}  // namespace vlmtrain::text::jinja

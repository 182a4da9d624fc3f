#pragma once

#include <span>
#include <string_view>

#include "text/jinja/method_table.h"

namespace vlmtrain::text::jinja {

/// What a template can name: null where there is none of that name. A filter's or test's `self` is what it is applied
/// to; a test gives a boolean.
const Method* find_filter(std::string_view name);
const Method* find_test(std::string_view name);
const Method* find_function(std::string_view name);

/// As map('name', …) and `value is name(…)` do it.
Value apply(Context& context, const Method& method, const Value& self, const Arguments& arguments);

/// Their parts.
std::span<const Method> filters_of_texts();
std::span<const Method> filters_of_numbers();
std::span<const Method> filters_of_lists();
std::span<const Method> filters_that_choose();
std::span<const Method> tests();
std::span<const Method> functions();

Value generator_of(std::vector<Value> items);

}  // namespace vlmtrain::text::jinja

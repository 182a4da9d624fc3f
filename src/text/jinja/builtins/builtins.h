#pragma once

#include <span>
#include <string_view>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

// The filters, tests and global functions of templates. The arguments `self` of a filter or test is
// the value on its left.

/// Each returns the filter, test or function `name`, or null.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_function(std::string_view name);

/// Returns the result of a filter, or the boolean of a test, for `self`. Throws EvaluationError for
/// wrong arguments.
Value apply_builtin(Context& context, const Builtin& builtin, const Value& self, const Arguments& arguments);

/// The tables that the functions above search.
std::span<const Builtin> text_filters();
std::span<const Builtin> number_filters();
std::span<const Builtin> list_filters();
std::span<const Builtin> select_filters();
std::span<const Builtin> tests();
std::span<const Builtin> functions();

/// Returns a generator of `items`, which yields them once.
Value make_generator(std::vector<Value> items);

}  // namespace vlmtrain::text::jinja

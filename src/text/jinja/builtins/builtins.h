#pragma once

#include <span>
#include <string>
#include <string_view>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

// The filters, tests and global functions of templates. `self` of a filter or test is the value on
// its left.

/// Each returns the filter, test or function `name`, or null if there is none.
const Builtin* find_filter(std::string_view name);
const Builtin* find_test(std::string_view name);
const Builtin* find_global_function(std::string_view name);

/// Returns the message for a name of a template that does not exist. `kind`: "filter", "test",
/// "function" or "statement".
std::string describe_unknown_name(std::string_view kind, std::string_view name);

/// Returns the result of a filter or test for the value `self`. A test returns a boolean. Throws
/// EvaluationError for invalid arguments and values.
Value call_builtin(RenderContext& context, const Builtin& builtin, const Value& self, const Arguments& arguments);

/// The tables that find_filter(), find_test() and find_global_function() search.
std::span<const Builtin> get_text_filters();
std::span<const Builtin> get_number_filters();
std::span<const Builtin> get_list_filters();
std::span<const Builtin> get_select_filters();
std::span<const Builtin> get_tests();
std::span<const Builtin> get_global_functions();

/// Returns a generator of `items`. It yields the items only once, see Sequence::is_exhausted.
Value make_generator(std::vector<Value> items);

}  // namespace vlmtrain::text::jinja

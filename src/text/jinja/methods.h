#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// A method of a text, list, tuple or dict, bound to it; undefined for one that the sandbox keeps from templates
/// (such as list.append); nothing where there is no attribute of that name. Throws Failure for one that Python has and
/// this interpreter has not.
std::optional<Value> find_bound_method(const Value& value, std::string_view name);

/// Whether Python's texts, lists or dicts have a method of that name and none of them has one here.
bool is_unsupported_method(std::string_view name);

}  // namespace vlmtrain::text::jinja

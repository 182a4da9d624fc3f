#pragma once

#include <optional>
#include <string_view>

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// `value.name`: an attribute of the value, or else its item of that name; undefined where there is neither. Throws
/// Failure for a value that is itself undefined, and for a method that is not supported.
Value get_attribute(const Value& value, std::string_view name);

/// `value[key]`: an item, or else an attribute of that name.
Value get_item(const Value& value, const Value& key, Budget& budget);

/// `value[begin:end:step]`, of which each may be None.
Value get_slice(const Value& value, const Value& begin, const Value& end, const Value& step, Budget& budget);

/// What the filters' `attribute` names: "a.0.b" is item b of item 0 of item a. A number is itself one.
Value get_path(const Value& value, const Value& path, Budget& budget);

}  // namespace vlmtrain::text::jinja

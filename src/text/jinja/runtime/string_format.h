#pragma once

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// Returns `text % values`: %s, %r, %d, %i, %f, %e, %g, %x, %X, %o, %c and %%, with flags, width,
/// precision and %(name)s. Throws EvaluationError where Python raises an exception, and for widths
/// above a limit.
Value format_percent(const Text& text, const Value& values, Budget& budget);

/// Returns text.format(…): {}, {0}, {name}, {name.attribute}, {name[key]}, !r and !s. Throws
/// EvaluationError where Python raises an exception, and for format specifications.
Value format_braces(Context& context, const Text& text, const Arguments& arguments);

}  // namespace vlmtrain::text::jinja

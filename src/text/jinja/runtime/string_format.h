#pragma once

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// `text % values`: %s, %r, %d, %i, %f, %e, %g, %x, %X, %o, %c and %%, with flags, width, precision and %(name)s.
Value format_percent(const Text& text, const Value& values, Budget& budget);

/// text.format(…) with {}, {0}, {name}, {name.attribute}, {name[key]}, !r and !s; without format specifications.
Value format_braces(Context& context, const Text& text, const Arguments& arguments);

}  // namespace vlmtrain::text::jinja

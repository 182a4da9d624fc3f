#pragma once

#include "text/jinja/runtime/object.h"

namespace vlmtrain::text::jinja {

/// Returns Python's `text % values`. Supports %s, %r, %d, %i, %u, %x, %X, %o, %f, %F, %e, %E, %g,
/// %G, %c, %% and %(name)s with flags, width and precision. Does not support %a, `*` as width or
/// precision, the flag # of integers, integers for %c, and integers beyond 64 bits. Throws
/// EvaluationError for these, if Python raises an exception, and for a width or precision above
/// 1000.
Value apply_percent_format(const TextValue& text, const Value& values, RenderBudget& budget);

/// Returns Python's text.format(…). Supports {}, {0}, {name}, {name.attribute}, {name[key]}, !r and
/// !s. Throws EvaluationError for format specifications ({:…}), for !a, and if Python raises an
/// exception.
Value apply_brace_format(RenderContext& context, const TextValue& text, const Arguments& arguments);

}  // namespace vlmtrain::text::jinja

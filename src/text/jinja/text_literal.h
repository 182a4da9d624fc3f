#pragma once

#include <string>
#include <string_view>

namespace vlmtrain::text::jinja {

/// What stands between the quotes of a text literal, with Python's escapes read. Throws Failure for one that is cut
/// short, a half of a surrogate pair, or \N{name}.
std::string unescape_literal(std::string_view literal);

}  // namespace vlmtrain::text::jinja

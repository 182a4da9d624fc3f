#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "text/jinja/syntax/syntax.h"

namespace vlmtrain::text::jinja {

/// Throws UserError (bad data) "FILE:LINE: …" for what is no template, or names what there is not.
std::shared_ptr<const SyntaxTree> parse(std::string_view source, std::string source_name);

}  // namespace vlmtrain::text::jinja

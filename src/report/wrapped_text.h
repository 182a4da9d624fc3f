#pragma once

#include <string>

namespace vlmtrain::report {

/// `text` in lines of at most `columns`, broken at spaces, and inside a word only where it is longer than a line. The
/// first line begins with `prefix`, the others with as many spaces. Ends with a line break.
std::string wrap_text(const std::string& prefix, const std::string& text, int columns);

}  // namespace vlmtrain::report

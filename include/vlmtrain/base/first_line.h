#pragma once

#include <algorithm>
#include <string>
#include <string_view>

namespace vlmtrain {

/// What an error says happened, before what its author wants to know: c10::Error::what() goes on with a backtrace, and
/// that of a kernel of the wrong kind begins with an empty line.
inline std::string get_first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace vlmtrain

#pragma once

#include <string>
#include <string_view>

namespace vlmtrain {

/// What an error says happened, before what its author wants to know: c10::Error::what() goes on with a backtrace.
inline std::string first_line(std::string_view text) {
  return std::string(text.substr(0, text.find('\n')));
}

}  // namespace vlmtrain

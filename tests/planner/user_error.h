#pragma once

#include <string>

#include "io/temporary_folder.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

/// Returns the message of the UserError that `action` throws. The test fails if it throws nothing.
template <class Action>
std::string get_usage_error(const Action& action, ExitCode code = ExitCode::kUsage) {
  return io::get_error_message(action, code);
}

}  // namespace vlmtrain::planner

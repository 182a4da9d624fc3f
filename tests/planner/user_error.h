#pragma once

#include <gtest/gtest.h>

#include <string>

#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

/// Returns the message of the UserError that `action` throws. Fails if it throws none.
template <class Action>
std::string get_usage_error(const Action& action, ExitCode code = ExitCode::kUsage) {
  try {
    action();
  } catch (const UserError& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error was thrown";
  return {};
}

}  // namespace vlmtrain::planner

#pragma once

#include <exception>
#include <string>

namespace vlmtrain::data {

/// Why a sample was not made.
struct Problem {
  std::string reason;
  std::string message;
  bool skippable = false;   ///< the sample's own fault, not the program's or the machine's
  bool is_dropped = false;  ///< as SampleError::is_dropped
};

/// REQUIRES: `error` is one.
Problem describe(const std::exception_ptr& error);

}  // namespace vlmtrain::data

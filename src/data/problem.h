#pragma once

#include <exception>
#include <string>

#include "vlmtrain/data/bad_samples.h"

namespace vlmtrain::data {

/// Why a sample was not made.
struct LoadFailure {
  std::string reason;
  std::string message;
  bool is_skippable = false;  ///< the sample's own fault, not the program's or the machine's
  bool is_dropped = false;    ///< as SampleError::is_dropped
};

/// REQUIRES: `error` is one.
LoadFailure describe_failure(const std::exception_ptr& error);

/// What stands against the sample; an error that is not its own fault is thrown again. REQUIRES: `error` is one.
SampleProblem to_sample_problem(const std::exception_ptr& error);

}  // namespace vlmtrain::data

#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace vlmtrain {

/// What the process exits with; scripts outside rely on the numbers.
enum class ExitCode : int {
  kSuccess = 0,
  kUsage = 2,       ///< wrong usage or config
  kDoesNotFit = 3,  ///< the plan does not fit the memory
  kBadData = 4,     ///< bad data or checkpoint
  kFailed = 5,      ///< failed while running
  kStopped = 75,    ///< stopped on request, a checkpoint is written: requeue
};

/// Something the user can mend. The message is a sentence that names the file, key or sample, and the remedy.
class UserError : public std::runtime_error {
 public:
  UserError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// The same, of which another process of the run tells: this one ends with the code and no further word.
class AlreadyReported : public UserError {
 public:
  using UserError::UserError;
};

/// A broken invariant: a bug in vlmtrain, not a mistake of the user.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

template <class... Args>
UserError usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kUsage, fmt::format(format, std::forward<Args>(args)...)};
}

template <class... Args>
UserError data_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kBadData, fmt::format(format, std::forward<Args>(args)...)};
}

template <class... Args>
UserError run_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kFailed, fmt::format(format, std::forward<Args>(args)...)};
}

namespace detail {
[[noreturn]] void fail_check(const char* file, int line, const char* condition, const std::string& message);
}  // namespace detail

}  // namespace vlmtrain

/// Throws InternalError where `condition` is false; the rest is a format string and its arguments.
#define VLMTRAIN_CHECK(condition, ...)                                                            \
  do {                                                                                            \
    if (!(condition)) {                                                                           \
      ::vlmtrain::detail::fail_check(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                             \
  } while (false)

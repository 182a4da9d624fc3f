#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace vlmtrain {

/// Exit code of the process. Scripts rely on the numbers, so they never change.
enum class ExitCode : int {
  kSuccess = 0,
  kUsage = 2,       ///< wrong usage or config
  kDoesNotFit = 3,  ///< the plan does not fit the memory
  kBadData = 4,     ///< bad data or checkpoint
  kFailed = 5,      ///< failed while running
  kStopped = 75,    ///< stopped on request after a checkpoint was written: requeue (EX_TEMPFAIL of sysexits.h)
};

/// An error that the user can fix. The message is one sentence,
/// "<file, key or sample>: <what is wrong>; <what to do>". It may contain untrusted text, which
/// to_printable_message() (base/text_format.h) escapes when the message is printed.
class UserError : public std::runtime_error {
 public:
  /// Makes an error with which the process exits with `code`.
  UserError(ExitCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ExitCode code() const { return code_; }

 private:
  ExitCode code_;
};

/// A UserError that another rank of the run reports. This process exits with its code() and does
/// not print it.
class AlreadyReportedError : public UserError {
 public:
  using UserError::UserError;
};

/// A broken invariant: a bug in vlmtrain, not a mistake of the user.
class InternalError : public std::logic_error {
 public:
  using std::logic_error::logic_error;
};

/// Returns a UserError with kUsage and the formatted message.
template <class... Args>
UserError usage_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kUsage, fmt::format(format, std::forward<Args>(args)...)};
}

/// Returns a UserError with kBadData and the formatted message.
template <class... Args>
UserError data_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kBadData, fmt::format(format, std::forward<Args>(args)...)};
}

/// Returns a UserError with kFailed and the formatted message.
template <class... Args>
UserError run_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ExitCode::kFailed, fmt::format(format, std::forward<Args>(args)...)};
}

/// Returns the first line of `text` that is not empty, or "" if all lines are empty. Shortens
/// c10::Error::what(), which has a backtrace after the message and sometimes an empty line before
/// it.
inline std::string get_first_line(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return std::string(text.substr(0, text.find('\n')));
}

namespace detail {
/// Throws InternalError with the location of the check, the condition and the message.
[[noreturn]] inline void throw_check_failure(const char* file, int line, const char* condition,
                                             const std::string& message) {
  throw InternalError(fmt::format("{}:{}: {} does not hold: {}", file, line, condition, message));
}
}  // namespace detail

}  // namespace vlmtrain

/// Throws InternalError if `condition` is false, also in release builds. The remaining arguments
/// are an {fmt} format string and its arguments; they are evaluated only on failure.
#define VLMTRAIN_CHECK(condition, ...)                                                                     \
  do {                                                                                                     \
    if (!(condition)) {                                                                                    \
      ::vlmtrain::detail::throw_check_failure(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                                      \
  } while (false)

#include "app/process/terminate_handler.h"

// Error messages for uncaught exceptions in a thread, or in the initializer of a library, which
// runs before main(). Memory may be exhausted, so nothing here allocates memory.

#include <cxxabi.h>
#include <unistd.h>

#include <cstring>
#include <exception>
#include <new>
#include <string_view>
#include <system_error>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"

namespace vlmtrain::app {

namespace {

constexpr std::string_view kThreadLimitStart = "the system cannot start another thread for this process; lower ";
constexpr std::string_view kThreadLimitEnd =
    ", or raise the limit on processes (ulimit -u) or on address space (ulimit -v)";

}  // namespace

const char* const kThreadLimitMessage =
    JoinedText<kThreadLimitStart, keys::data::kNumWorkers, kThreadLimitEnd>::value.data();

namespace {

void write_to_stderr(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, text, std::strlen(text));
}

[[noreturn]] void exit_with_message(ExitCode code, const char* message, const char* prefix = "vlmtrain: error: ") {
  write_to_stderr(prefix);
  write_to_stderr(message);
  write_to_stderr("\n");
  _exit(static_cast<int>(code));
}

[[noreturn]] void handle_terminate() {
  constexpr const char* kOutOfMemoryMessage =
      "the host's memory is full: the system does not allocate more; free some memory, request more (SLURM's "
      "--mem), or raise the limits on address space (ulimit -v) and data (ulimit -d)";
  constexpr const char* kInternalErrorPrefix = "vlmtrain: internal error, please report it: ";
  if (abi::__cxa_current_exception_type() == nullptr)
    exit_with_message(ExitCode::kFailed, "std::terminate was called", kInternalErrorPrefix);
  try {
    throw;
  } catch (const std::bad_alloc&) {
    exit_with_message(ExitCode::kDoesNotFit, kOutOfMemoryMessage);
  } catch (const std::system_error& error) {
    if (error.code() == std::errc::resource_unavailable_try_again)
      exit_with_message(ExitCode::kFailed, kThreadLimitMessage);
    if (error.code() == std::errc::not_enough_memory) exit_with_message(ExitCode::kDoesNotFit, kOutOfMemoryMessage);
    exit_with_message(ExitCode::kFailed, error.what(), kInternalErrorPrefix);
  } catch (const std::exception& error) {
    exit_with_message(ExitCode::kFailed, error.what(), kInternalErrorPrefix);
  } catch (...) {
    exit_with_message(ExitCode::kFailed, "an exception of unknown type", kInternalErrorPrefix);
  }
}

void install_terminate_handler(int /*argc*/, char** /*argv*/, char** /*environment*/) {
  std::set_terminate(handle_terminate);
}

// The dynamic loader calls the functions in .preinit_array before the initializers of all
// libraries.
[[gnu::section(".preinit_array"), gnu::used]] void (*preinit_entry)(int, char**, char**) = install_terminate_handler;

}  // namespace

}  // namespace vlmtrain::app

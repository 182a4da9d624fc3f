#include "app/process/process_setup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "vlmtrain/base/program.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

void reopen_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // The least free number is the stream's own. Stdout's is not for writing.
    open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

ExitCode flush_stdout(ExitCode code) {
  errno = 0;
  std::cout.flush();  // hands on to stdout
  std::fflush(stdout);
  int error = errno;
  train::wait_if_exiting();  // what the lack of a reader does
  if (std::ferror(stdout) == 0) return code;
  // A line before the last may have met it first; what stands in the way of one more byte is the same.
  if (error == 0 && write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  const char* const reason = error != 0 ? std::strerror(error) : "a part of it is lost";
  std::fprintf(stderr, "vlmtrain: error: stdout cannot be written: %s; send the output to where there is room\n",
               reason);
  return code == ExitCode::kStopped ? code : ExitCode::kFailed;
}

bool set_openmp_wait_policy() {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  constexpr const char* kSpinCount = "GOMP_SPINCOUNT";
  if (std::getenv(kPolicy) != nullptr || std::getenv(kSpinCount) != nullptr) return false;
  setenv(kPolicy, "passive", /*overwrite=*/0);
  setenv(kSpinCount, "1000", /*overwrite=*/0);
  return true;
}

void restart_with_openmp_wait_policy() {
  if (set_openmp_wait_policy()) restart_program();
  // Where it cannot be started again, it goes on as it is: slower on a busy machine, no different otherwise.
}

}  // namespace vlmtrain::app

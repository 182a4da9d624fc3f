#include "app/settings/process_setup.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "vlmtrain/base/process.h"
#include "vlmtrain/train/stop_request.h"

namespace vlmtrain::app {

void reopen_closed_streams() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (fcntl(stream, F_GETFD) >= 0 || errno != EBADF) continue;
    // open() returns the lowest free descriptor, which is that of the closed stream. Stdout is
    // opened for reading only, so that writing to it fails.
    open("/dev/null", stream == STDERR_FILENO ? O_WRONLY : O_RDONLY);
  }
}

ExitCode flush_stdout(ExitCode code) {
  errno = 0;
  std::cout.flush();  // std::cout may have its own buffer in front of stdout
  std::fflush(stdout);
  int error = errno;
  // A stop signal that has ended the reader is also ending this process. Then there is no error to
  // report.
  train::wait_forever_if_exiting();
  if (std::ferror(stdout) == 0) return code;
  // An earlier write may have failed, and its errno is lost. Another write fails with the same
  // errno.
  if (error == 0 && write(STDOUT_FILENO, "\n", 1) < 0) error = errno;
  const char* const reason = error != 0 ? std::strerror(error) : "part of the output is lost";
  std::fprintf(stderr, "vlmtrain: error: cannot write to stdout: %s; write the output to a disk with free space\n",
               reason);
  return code == ExitCode::kStopped ? code : ExitCode::kFailed;
}

bool set_openmp_wait_policy() {
  constexpr const char* kWaitPolicyEnvVar = "OMP_WAIT_POLICY";
  constexpr const char* kSpinCountEnvVar = "GOMP_SPINCOUNT";
  if (std::getenv(kWaitPolicyEnvVar) != nullptr || std::getenv(kSpinCountEnvVar) != nullptr) return false;
  setenv(kWaitPolicyEnvVar, "passive", /*overwrite=*/0);
  setenv(kSpinCountEnvVar, "1000", /*overwrite=*/0);  // some ten microseconds (docs/benchmarks/cpu.md)
  return true;
}

void restart_with_openmp_wait_policy() {
  if (set_openmp_wait_policy()) restart_program();
  // If the program cannot be executed again, it continues: slower on a busy machine, but with the
  // same results.
}

}  // namespace vlmtrain::app

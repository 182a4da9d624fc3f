#include "app/openmp_waiting.h"

#include <cstdlib>

#include "vlmtrain/base/program.h"

namespace vlmtrain::app {

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

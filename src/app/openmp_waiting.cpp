#include "app/openmp_waiting.h"

#include <cstdlib>

#include "vlmtrain/base/program.h"

namespace vlmtrain::app {

bool set_openmp_waiting() {
  constexpr const char* kPolicy = "OMP_WAIT_POLICY";
  constexpr const char* kSpins = "GOMP_SPINCOUNT";
  if (std::getenv(kPolicy) != nullptr || std::getenv(kSpins) != nullptr) return false;
  setenv(kPolicy, "passive", /*overwrite=*/0);
  setenv(kSpins, "1000", /*overwrite=*/0);
  return true;
}

void restart_with_openmp_waiting() {
  if (set_openmp_waiting()) restart_program();
  // Where it cannot be started again, it goes on as it is: slower on a busy machine, no different otherwise.
}

}  // namespace vlmtrain::app

#include "app/openmp_waiting.h"

#include <cstdlib>

#include "vlmtrain/base/program.h"

namespace vlmtrain::app {

void let_openmp_threads_sleep() {
  constexpr const char* kSetting = "OMP_WAIT_POLICY";
  if (std::getenv(kSetting) != nullptr) return;
  setenv(kSetting, "passive", /*overwrite=*/0);
  restart_program();
  // Where it cannot be started again, it goes on as it is: slower on a busy machine, no different otherwise.
}

}  // namespace vlmtrain::app

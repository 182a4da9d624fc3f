#include "app/commands.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::app {

ExitCode dry_run() {
  if (!planner::is_on_virtual_gpu()) throw usage_error("rehearse: started by vlmtrain plan only, on a virtual card");
  spdlog::set_level(spdlog::level::off);  // stdout is for answers; the process that asks has its own log
  planner::serve_dry_runs();
  return ExitCode::kSuccess;
}

}  // namespace vlmtrain::app

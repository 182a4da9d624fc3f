#include "app/commands.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::app {

ExitCode rehearse() {
  if (!planner::on_virtual_card()) throw usage_error("rehearse: started by vlmtrain plan only, on a virtual card");
  spdlog::set_level(spdlog::level::off);  // stdout is for answers; the process that asks has its own log
  planner::serve_rehearsals();
  return ExitCode::kDone;
}

}  // namespace vlmtrain::app

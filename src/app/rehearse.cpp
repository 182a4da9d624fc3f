#include "app/commands.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::app {

ExitCode rehearse() {
  if (!planner::on_virtual_card()) throw usage_error("rehearse: started by vlmtrain plan only, on a virtual card");
  planner::serve_rehearsals();
  return ExitCode::kDone;
}

}  // namespace vlmtrain::app

#include "app/command.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::app {

Action declare_rehearse(CLI::App& command) {
  command.group("");  // not for people: the planner starts it
  return [] {
    if (!planner::on_virtual_card()) throw usage_error("rehearse: started by vlmtrain plan only, on a virtual card");
    planner::serve_rehearsals();
    return ExitCode::kDone;
  };
}

}  // namespace vlmtrain::app

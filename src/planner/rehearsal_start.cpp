#include "vlmtrain/planner/rehearsal_start.h"

#include "planner/spawned_child.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

void start_rehearsals_before(const std::filesystem::path& program) {
  try {
    leave_for_exec(spawn_child(program, workers_that_pay()));
  } catch (const UserError&) {  // the program meets the same
  }
}

}  // namespace vlmtrain::planner

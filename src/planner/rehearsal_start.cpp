#include "vlmtrain/planner/rehearsal_start.h"

#include "vlmtrain/base/error.h"
#include "vlmtrain/planner/spawned_child.h"

namespace vlmtrain::planner {

void prestart_dry_run_process(const std::filesystem::path& program) {
  try {
    pass_child_through_exec(spawn_child(program, num_useful_workers()));
  } catch (const UserError&) {  // the program meets the same
  }
}

}  // namespace vlmtrain::planner

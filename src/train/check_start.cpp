#include "vlmtrain/train/check_start.h"

#include "train/resumption.h"
#include "train/run_setup.h"
#include "train/task_balance.h"
#include "vlmtrain/data/tasks.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

void preflight_check(const Config& config, const io::Records& records) {
  check_config(config);
  make_task_settings(config.training.balance, data::Tasks(records));
  const auto checkpoint = find_newest_checkpoint(get_run_folder(config));
  if (checkpoint) load_resume_point(*checkpoint, config, make_run_fingerprint(config, records.size()));
  load_model(config, make_job(config), at::kMeta, checkpoint, /*with_values=*/false);
}

}  // namespace vlmtrain::train

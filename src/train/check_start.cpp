#include "vlmtrain/train/check_start.h"

#include "train/resumption.h"
#include "train/run_setup.h"
#include "train/task_balance.h"
#include "vlmtrain/data/tasks.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/setup.h"

namespace vlmtrain::train {

void check_start(const Config& config, const io::Records& records) {
  check_keys(config);
  task_settings(config.training.balance, data::Tasks(records));
  const auto newest = newest_checkpoint(run_folder(config));
  if (newest) resume_from(*newest, config, run_fingerprint(config, records.size()));
  load_model(config, job_of(config), at::kMeta, newest, /*with_values=*/false);
}

}  // namespace vlmtrain::train

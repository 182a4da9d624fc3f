#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <vector>

#include "train/host_run.h"
#include "train/run_plan.h"
#include "train/task_balance.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/engine/optimizer.h"
#include "vlmtrain/engine/schedule.h"
#include "vlmtrain/io/dataset_file.h"
#include "vlmtrain/models/model.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/run_checkpoint.h"

namespace vlmtrain::train {

/// Whether the run is on a virtual card: all is done but arithmetic, so there are no values and nothing to save.
bool is_rehearsal();

/// output.dir; of a rehearsal a folder in it, away from the run's own results.
std::filesystem::path run_folder(const Config& config);

/// All that a run consists of, ready for its next step: planned, loaded, and where the newest checkpoint left off.
struct RunSetup {
  /// Throws UserError.
  RunSetup(const Config& config, at::Device device);

  std::filesystem::path folder;
  std::vector<io::Record> records;
  std::unique_ptr<models::Processor> processor;
  RunCheckpoints checkpoints;
  RunState state;
  bool resumed = false;
  data::Ledger ledger;  ///< with the bad samples that are known
  TaskBalance tasks;
  engine::Schedule schedule;
  std::optional<RunPlan> plan;    ///< on a GPU
  std::unique_ptr<HostRun> host;  ///< on the CPU
  planner::Choices choices;
  std::unique_ptr<models::VisionLanguageModel> model;
  std::unique_ptr<engine::AdamW> optimizer;
  std::unique_ptr<models::BaseWeights> base;  ///< null on a virtual card

 private:
  void find_newest(const Config& config);
  void make_plan(const Config& config, at::Device device, planner::Workload workload, int64_t making_bytes);
  void load(const Config& config, at::Device device);
};

}  // namespace vlmtrain::train

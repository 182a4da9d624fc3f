#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

struct TrainingSummary {
  bool stopped = false;                             ///< a signal ended the run early; a checkpoint is written
  int64_t steps = 0;                                ///< done in all, by this process and the ones before it
  std::optional<double> last_loss;                  ///< of the last step that this process did, if it did one
  std::optional<std::filesystem::path> checkpoint;  ///< nothing on a virtual card
  int64_t reserved_peak_bytes = 0;                  ///< of device memory; 0 on the CPU
  std::optional<int64_t> planned_peak_bytes;        ///< the same, as planned; nothing on the CPU
  int64_t skipped_steps = 0;                        ///< whose loss or gradients were not finite
  double callback_seconds = 0;                      ///< spent on metrics, progress, reports, sample answers
  double save_seconds = 0;                          ///< that steps waited for checkpoints
  bool early_stopped = false;                       ///< training.early_stopping_patience was used up
  std::string best_metric{};                        ///< what best_value is; empty where there are no evaluations
  std::optional<int64_t> best_step{};
  std::optional<double> best_value{};
  std::optional<std::filesystem::path> best_checkpoint{};      ///< nothing where it is not kept
  std::optional<report::EvaluationMetrics> last_evaluation{};  ///< of this process

  /// As `train --json` prints it.
  std::string to_json() const;
};

/// Trains as `config` says and writes the run's folder: config.yaml, plan.json (on a GPU), metrics.jsonl, ledger.json,
/// checkpoints. On a virtual card it is the same without values: no weights are read, no checkpoint is written, losses
/// are null, and the folder is `virtual-CARD` in output.dir. Throws UserError; whatever happens, ledger.json is written
/// and the newest checkpoint is whole.
///
/// `launch`: this process is one of several that train together, which all call it; the first of them writes.
TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet,
                      const std::optional<distributed::Launch>& launch = {});

}  // namespace vlmtrain::train

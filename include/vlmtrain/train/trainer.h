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

/// The result of train().
struct TrainingSummary {
  bool stopped = false;                             ///< a signal ended the run early; a checkpoint is written
  int64_t steps = 0;                                ///< completed steps, by this process and the earlier ones
  std::optional<double> last_loss;                  ///< of the last step of this process
  std::optional<std::filesystem::path> checkpoint;  ///< nullopt on a virtual GPU
  int64_t reserved_peak_bytes = 0;                  ///< of device memory; 0 on the CPU
  std::optional<int64_t> planned_peak_bytes;        ///< planned reserved_peak_bytes; nullopt on the CPU
  int64_t skipped_steps = 0;                        ///< steps whose loss or gradients were not finite
  double callback_seconds = 0;                      ///< spent on metrics, progress, reports and sample predictions
  double save_seconds = 0;                          ///< during which steps waited for checkpoints
  bool early_stopped = false;                       ///< training.early_stopping_patience was used up
  std::string best_metric{};                        ///< metric of best_value; empty without evaluations
  std::optional<int64_t> best_step{};
  std::optional<double> best_value{};
  std::optional<std::filesystem::path> best_checkpoint{};      ///< nullopt if it is not kept
  std::optional<report::EvaluationMetrics> last_evaluation{};  ///< the last evaluation of this process

  /// Returns the JSON object that `train --json` prints.
  std::string to_json() const;
};

/// Trains as `config` says and writes the run's folder: config.yaml, plan.json (on a GPU),
/// metrics.jsonl, ledger.json, checkpoints. On a virtual GPU no weights are read and no checkpoint
/// is written, losses are null, and the folder is `virtual-NAME` in output.dir. Throws UserError;
/// ledger.json is written and the newest checkpoint is whole even then.
///
/// `launch`: the process is one of several ranks, which all call the function; rank 0 writes the
/// files.
TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet,
                      const std::optional<distributed::Launch>& launch = {});

}  // namespace vlmtrain::train

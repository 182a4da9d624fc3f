#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "vlmtrain/base/tensor_fwd.h"
#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The result of train().
struct TrainingSummary {
  bool was_stopped_by_signal = false;                      ///< a signal ended the run early, after a checkpoint
  int64_t steps = 0;                                       ///< completed steps of the run, including earlier processes
  std::optional<double> last_loss;                         ///< of the last step of this process; nullopt without steps
  std::optional<std::filesystem::path> newest_checkpoint;  ///< its folder; nullopt on a virtual GPU
  int64_t reserved_peak_bytes = 0;                         ///< of device memory; 0 on the CPU
  std::optional<int64_t> planned_peak_bytes;               ///< planned reserved_peak_bytes; nullopt on the CPU
  int64_t num_skipped_steps = 0;                           ///< steps whose loss or gradients were not finite
  double callback_seconds = 0;     ///< time of metrics, progress, reports and sample predictions
  double save_seconds = 0;         ///< time that steps waited for checkpoints
  bool was_stopped_early = false;  ///< training.early_stopping_patience ended the run
  std::string best_metric{};       ///< metric of best_metric_value; empty without evaluations
  std::optional<int64_t> best_step{};
  std::optional<double> best_metric_value{};
  std::optional<std::filesystem::path> best_checkpoint{};      ///< nullopt if it is not kept
  std::optional<report::EvaluationMetrics> last_evaluation{};  ///< the last evaluation of this process

  /// Returns the JSON object that `train --json` prints.
  std::string to_json() const;
};

/// Trains according to `config` and writes the run's folder: config.yaml, plan.json, metrics.jsonl,
/// ledger.json, checkpoints and reports. Resumes a run in output.dir as training.resume says. On a
/// virtual GPU no weights are read and no checkpoint is written, losses are null, and the folder is
/// `virtual-NAME` in output.dir.
///
/// `resolved_yaml`: the text of config.yaml, equal on all ranks. `quiet`: no progress bar.
/// `launch`: this process is one of several ranks, which all call this function; rank 0 writes the
/// files; nullopt for a single process.
///
/// Throws UserError. If steps have run, ledger.json is written even then; the newest checkpoint is
/// complete.
TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet,
                      const std::optional<distributed::LaunchInfo>& launch = {});

}  // namespace vlmtrain::train

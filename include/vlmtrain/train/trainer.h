#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

struct TrainingSummary {
  bool stopped = false;             ///< a signal ended the run early; a checkpoint is written
  int64_t steps = 0;                ///< done in all, by this process and the ones before it
  std::optional<double> last_loss;  ///< of the last step that this process did, if it did one
  std::filesystem::path checkpoint;

  /// As `train --json` prints it.
  std::string to_json() const;
};

/// Trains as `config` says and writes the run's folder: config.yaml, metrics.jsonl, ledger.json, checkpoints. Throws
/// UserError; whatever happens, ledger.json is written and the newest checkpoint is whole.
TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet);

}  // namespace vlmtrain::train

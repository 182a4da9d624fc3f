#pragma once

#include <c10/core/Device.h>

#include <filesystem>
#include <vector>

#include "vlmtrain/evaluation/evaluate.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What `vlmtrain eval` evaluates, and how.
struct PlannedEvaluation {
  std::shared_ptr<const io::Records> records;
  int64_t num_dropped = 0;          ///< bad samples that are not among them
  bool notices_are_logged = false;  ///< all samples were looked at; else an evaluation counts their notices
  evaluation::EvaluationSettings settings;
};

/// Of data.eval, with a checkpoint that is not loaded yet. Looks at the samples as data.check_at_start says; rehearses
/// the largest of them, which says how many fit at once on the device or in the host's memory. A plan that cannot be
/// made is a warning. `base`: of an adapter, as models::find_adapter_base; else not read. Throws UserError (kBadData)
/// as data.on_bad_sample says.
PlannedEvaluation plan_evaluation(const Config& config, const std::filesystem::path& checkpoint,
                                  const models::Processor& processor, at::Device device,
                                  const std::filesystem::path& base = {});

}  // namespace vlmtrain::train

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/target_gpu.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The optional parts of an inspection.
struct InspectionRequest {
  std::string model;                              ///< model.path as the user gave it
  bool decode = false;                            ///< decodes all images and videos, not only their headers
  int64_t samples = 3;                            ///< samples to show, in the order in which a run draws them
  std::vector<std::string> records = {};          ///< further records to show: ids, or positions from 1
  std::optional<planner::TargetGpu> target = {};  ///< the GPU to predict memory for
};

/// Returns what a run of this configuration would train on. Reads all samples, with the cache of
/// earlier runs; writes nothing and reads no weights. model.path is a folder. Throws UserError:
/// kBadData where the data set cannot be opened or is empty, kUsage where a requested record does
/// not exist. Unusable samples are part of the result.
report::Inspection inspect_data(const Config& config, const InspectionRequest& request);

}  // namespace vlmtrain::train

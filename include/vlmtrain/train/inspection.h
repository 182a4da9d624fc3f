#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/target.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// The settings of inspect_data().
struct InspectionRequest {
  std::string model;                              ///< model.path as the user gave it
  bool decode = false;                            ///< decodes all images and videos instead of their headers
  int64_t samples = 3;                            ///< number of samples to show, the first ones that a run draws
  std::vector<std::string> records = {};          ///< further records to show: ids, or positions from 1
  std::optional<planner::TargetGpu> target = {};  ///< the GPU to predict memory for
};

/// Describes the data that a run with this configuration would train on. Checks all samples and
/// uses the cached checks of earlier runs; writes nothing and reads no weights. Unusable samples
/// are reported in the result. Throws UserError: kBadData if the data set cannot be opened or is
/// empty, kUsage if a requested record does not exist. REQUIRES: model.path is a folder, not a
/// preset.
report::Inspection inspect_data(const Config& config, const InspectionRequest& request);

}  // namespace vlmtrain::train

#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/limit.h"
#include "vlmtrain/report/inspection.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What is to be found out beside what is always.
struct InspectionRequest {
  std::string model;                              ///< as the user named it
  bool decode = false;                            ///< all pictures and videos, not only headers
  int64_t samples = 3;                            ///< to show: those that a run draws first
  std::vector<std::string> records = {};          ///< to show besides: ids, or places from 1
  std::optional<planner::TargetGpu> target = {};  ///< to predict memory for
};

/// What a run of this configuration would train on: all samples are looked at, as a run looks at them, and what it kept
/// of its look before is used. Nothing is written. model.path is a folder; no weights are read. Throws UserError:
/// kBadData where the data set cannot be opened or has no records, kUsage where a record is asked for that is not
/// there. Samples that cannot be used are no error.
report::Inspection inspect_data(const Config& config, const InspectionRequest& request);

}  // namespace vlmtrain::train

#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/data/outlines.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What a run evaluates on: the records of data.eval, or training.eval_samples of them, without those that are known
/// to be bad.
class EvaluationSet {
 public:
  /// Looks at the samples as data.check_at_start says; `cache` as look_at_data(). Throws UserError (kBadData) where one
  /// is bad and data.on_bad_sample is fail, and where none can be used; kUsage for training.best_metric=dice without
  /// masks.
  EvaluationSet(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  const std::shared_ptr<const io::Records>& records() const { return records_; }
  /// Bad samples that are not among the records.
  int64_t dropped() const { return std::ssize(outlines_.problems); }
  /// The largest batches of up to `batch_size` samples.
  std::vector<planner::SampleBatch> worst_batches(int64_t batch_size) const;
  int64_t making_bytes() const { return outlines_.making_bytes; }
  const data::Outlines& outlines() const { return outlines_; }
  const std::string& name() const { return name_; }

  /// Of all samples, once they were looked at or evaluated.
  const data::NoticeCounts& notices() const { return outlines_.notices; }
  /// What an evaluation counted; logged and kept where the samples were not looked at before, else kept as far as only
  /// pixels show it.
  void take_notices(const data::NoticeCounts& notices);

 private:
  void require_masks(const std::vector<int64_t>& usable) const;
  void look(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  std::string name_;
  std::shared_ptr<const io::Records> records_;
  data::Outlines outlines_;
};

}  // namespace vlmtrain::train

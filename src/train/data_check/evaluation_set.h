#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/data/outlines.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// What a run evaluates on: the records of data.eval, or training.eval_samples of them, without those that are known
/// to be bad.
class EvaluationSet {
 public:
  /// Looks at the samples as data.check_at_start says; `cache` as check_data(). Throws UserError (kBadData) where one
  /// is bad and data.on_bad_sample is fail, and where none can be used; kUsage for training.best_metric=dice without
  /// masks.
  EvaluationSet(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  const std::shared_ptr<const io::Records>& records() const { return records_; }
  /// Bad samples that are not among the records.
  int64_t num_dropped() const { return std::ssize(sample_index_.problems); }
  /// The largest batches of up to `batch_size` samples.
  std::vector<planner::SampleBatch> find_worst_batches(int64_t batch_size) const;
  int64_t decode_bytes() const { return sample_index_.decode_bytes; }
  const data::SampleIndex& sample_index() const { return sample_index_; }
  const std::string& name() const { return name_; }

  /// Of all samples, once they were looked at or evaluated.
  const data::NoticeCounts& notices() const { return sample_index_.notices; }
  /// What an evaluation counted; logged and kept where the samples were not looked at before, else kept as far as only
  /// pixels show it.
  void merge_notices(const data::NoticeCounts& notices);

 private:
  void require_masks(const std::vector<int64_t>& usable_indices) const;
  void check_samples(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  std::string name_;
  std::shared_ptr<const io::Records> records_;
  data::SampleIndex sample_index_;
};

/// The most samples that an evaluation computes at once where it is planned: on a GPU, and on the CPU, where more are
/// hardly faster.
inline constexpr int64_t kGpuEvalBatchSize = 32;
inline constexpr int64_t kCpuEvalBatchSize = 16;

/// Bytes of the largest sample of these batches once it is decoded.
int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& candidates);

/// What a configuration asks of the planner for evaluations of `evaluation_set`; training, and what may be taken, are
/// left open.
planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job);

/// `count` records spread over a data set, one drawn from each of as many stretches, the same in every run: kinds of
/// questions often take turns, and records at equal distances would be of one kind. Those with a problem are left out.
std::vector<int64_t> sample_evenly(const io::Records& records, int64_t count);

}  // namespace vlmtrain::train

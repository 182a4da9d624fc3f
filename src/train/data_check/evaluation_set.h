#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "vlmtrain/data/index/hold_out.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/planner/evaluation_plan.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Splits a source of data.train of which data.eval holds out a share: as held_out.json of the run
/// in output.dir says, else at random. Logs differences if `log_changes`. Throws as
/// data::hold_out() and data::restore_hold_out().
data::HoldOutSplit split_source(const Config& config, const data::Source& source, const io::Records& records,
                                bool log_changes);

/// Writes held_out.json into the run's folder for its next start, unless it has this split. Reads
/// the texts of held-out records; with data.check_at_start=false only of a few.
void save_held_out(const Config& config, const std::vector<SourceSplit>& sources);

/// The samples of a run's evaluations: the records of data.eval, or training.eval_samples of them,
/// without known bad ones.
class EvaluationSet {
 public:
  /// Checks the samples as data.check_at_start says; `cache` as for check_data(). Throws UserError:
  /// kBadData as data.on_bad_sample says and if no sample is usable, kUsage for
  /// training.best_metric=dice without masks.
  EvaluationSet(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  const std::shared_ptr<const io::Records>& records() const { return records_; }
  /// Returns the number of bad samples, which are not among the records.
  int64_t num_dropped() const { return std::ssize(sample_index_.problems); }
  /// Returns the batches of up to `batch_size` samples that may need the most memory.
  std::vector<planner::SampleBatch> find_worst_batches(int64_t batch_size) const;
  int64_t decode_bytes() const { return sample_index_.decode_bytes; }
  const data::SampleIndex& sample_index() const { return sample_index_; }
  const std::string& name() const { return name_; }

  /// Returns the notices of all samples that were checked or evaluated.
  const data::NoticeCounts& notices() const { return sample_index_.notices; }
  /// Merges the notices of an evaluation. Those of samples that were not checked before are logged;
  /// of checked samples only notices that need decoded pixels are new.
  void merge_notices(const data::NoticeCounts& notices);

 private:
  void require_masks(const std::vector<int64_t>& usable_indices) const;
  void check_samples(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  std::string name_;
  std::shared_ptr<const io::Records> records_;
  data::SampleIndex sample_index_;
};

/// Largest batch of a planned evaluation on a GPU. The CPU has its own limit, above which batches
/// are hardly faster.
inline constexpr int64_t kGpuEvalBatchSize = 32;
inline constexpr int64_t kCpuEvalBatchSize = 16;

/// Returns the bytes of the largest decoded sample of these batches.
int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& candidates);

/// Returns the planner's request for evaluations of `evaluation_set`, without training and without
/// a memory limit.
planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job);

/// Returns the indices of about `count` records, one drawn at random from each of `count` equal
/// ranges, the same in every run. Types of questions often alternate, so that records at equal
/// distances would be of one type. Leaves records with problems out.
std::vector<int64_t> sample_evenly(const io::Records& records, int64_t count);

}  // namespace vlmtrain::train

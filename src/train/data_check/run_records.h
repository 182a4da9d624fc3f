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

/// Splits a source of data.train into training and held-out records, for a data.eval that is a
/// share. Restores the split in held_out.json of the run in output.dir, if it exists; otherwise
/// draws the held-out records at random by training.seed. With `log_changes`, logs differences from
/// the saved split. Throws UserError (kBadData) for an invalid held_out.json, and the errors of
/// data::draw_hold_out_split() and data::restore_hold_out().
data::HoldOutSplit split_source(const Config& config, const data::Source& source, const io::Records& records,
                                bool log_changes);

/// Writes held_out.json into the run's folder for its next start, unless the file has this split.
/// Reads the held-out records to store hashes of their contents; with data.check_at_start=false,
/// only some.
void save_held_out_splits(const Config& config, const std::vector<HoldOutSource>& sources);

/// The samples of a run's evaluations: all records of data.eval, or a selection of
/// training.eval_samples records, without known bad samples. Not thread-safe.
class EvaluationSet {
 public:
  /// Checks the samples as data.check_at_start says; `cache` as for check_data(). Throws UserError:
  /// kBadData as data.on_bad_sample says and if no sample is usable, kUsage for
  /// training.best_metric=dice without masks.
  EvaluationSet(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  const std::shared_ptr<const io::Records>& records() const { return records_; }
  /// Returns the number of bad samples, which are not among the records.
  int64_t num_bad_samples() const { return std::ssize(sample_index_.problems); }
  /// Returns the batches of up to `batch_size` samples that may need the most memory.
  std::vector<planner::SampleBatch> find_worst_batches(int64_t batch_size) const;
  /// Returns SampleIndex::decode_bytes, the memory that decoding one sample takes.
  int64_t decode_bytes() const { return sample_index_.decode_bytes; }
  const data::SampleIndex& sample_index() const { return sample_index_; }
  /// Returns the value of data.eval.
  const std::string& name() const { return name_; }

  /// Returns the notices of all samples that were checked or evaluated.
  const data::NoticeCounts& notices() const { return sample_index_.notices; }
  /// Merges the notices of an evaluation. If all samples were checked, adds only notices of kinds
  /// that are new, which need decoded pixels. Otherwise replaces the notices, and logs them if they
  /// changed.
  void add_missing_notices(const data::NoticeCounts& notices);

 private:
  void check_has_masks(const std::vector<int64_t>& usable_indices) const;
  void check_samples(const Config& config, const models::Processor& processor, const std::filesystem::path& cache);

  std::string name_;
  std::shared_ptr<const io::Records> records_;
  data::SampleIndex sample_index_;
};

/// Largest batch of a planned evaluation on a GPU. Not tuned.
inline constexpr int64_t kMaxGpuEvalBatchSize = 32;
/// Largest batch of a planned evaluation on the CPU. Larger batches are hardly faster there.
inline constexpr int64_t kMaxCpuEvalBatchSize = 16;

/// Returns the bytes of the largest decoded sample, of the first samples of `batches`. Each
/// batch is sorted by descending size.
int64_t compute_largest_sample_bytes(const std::vector<planner::SampleBatch>& batches);

/// Returns the planner's request for evaluations of `evaluation_set`, without training and without
/// a memory limit.
planner::EvaluationRequest make_evaluation_request(const Config& config, const EvaluationSet& evaluation_set,
                                                   planner::Job job);

/// Returns the indices of up to `count` records, one drawn at random from each of `count` equal
/// ranges, the same in every run. Types of questions often alternate, so records at equal distances
/// could all have the same type. Skips records that cannot be parsed.
std::vector<int64_t> select_evenly_spaced_indices(const io::Records& records, int64_t count);

/// Splits the long texts of data sets into windows (data.text_window_tokens). Loads the processor of
/// the model when it is first needed.
class TextSplitter {
 public:
  /// `config` must outlive the object. Throws UserError (kUsage) if a window is larger than a sample
  /// or a pack may be.
  explicit TextSplitter(const Config& config);

  /// Returns the records with each window of a long text as a record of its own; `records` itself
  /// if data.text_window_tokens is auto or if no text is longer. The number of windows is cached in
  /// the user's cache folder. `name` is for the log.
  std::shared_ptr<const io::Records> split(std::shared_ptr<const io::Records> records, const std::string& name);

 private:
  /// Returns data::count_record_windows(), with a progress bar.
  std::vector<int64_t> count_windows(const io::Records& records, int64_t window_tokens);

  const Config& config_;
  models::ProcessorSettings settings_;
  std::unique_ptr<models::Processor> processor_;  // null until it is needed
};

}  // namespace vlmtrain::train

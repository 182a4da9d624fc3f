#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/order/draws.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Checks the samples of `records` before the first step: all samples, or with
/// data.check_at_start=false a few hundred for the plan. Shows the progress and logs the duration.
/// `file`: the data set's name. `cache`: a file that keeps the result for the next start of the
/// run; empty for none. The user's cache folder keeps the results of large data sets for other runs
/// (get_shared_index_file()).
data::SampleIndex check_data(const io::Records& records, const models::Processor& processor, const Config& config,
                             const std::filesystem::path& file, const std::filesystem::path& cache);

/// Checks all samples, regardless of data.check_at_start. Reads `cache` or, if it does not exist,
/// the shared cache; writes neither.
data::SampleIndex check_data_for_inspection(const io::Records& records, const models::Processor& processor,
                                            const Config& config, const std::filesystem::path& file,
                                            const std::filesystem::path& cache);

/// Records the bad samples in `ledger`, as failed or dropped according to data.on_bad_sample.
/// Throws UserError (kBadData), with the first bad sample, for data.on_bad_sample=fail and if no
/// sample is usable; writes the ledger to `ledger_file` before. `earlier_version_ignored_keys`: the
/// run was started by an older version, which ignored record keys that are errors now; then a
/// warning names the setting that ignores them again.
void handle_bad_samples(const data::SampleIndex& sample_index, const Config& config, const io::Records& records,
                        data::Ledger& ledger, const std::filesystem::path& ledger_file,
                        bool earlier_version_ignored_keys = false);

/// Logs remarks on data.train before the first step: notices of its samples if all were checked,
/// sources without images, videos or volumes, and settings that have no effect on the data.
void log_training_data_remarks(const Config& config, const data::DataSet& records,
                               const data::SampleIndex& sample_index);

/// Logs the fill of the packs in the first epoch. Does nothing if samples are not packed.
void log_pack_utilization(const data::SampleOrder& order);

/// Logs notices and media of data.eval.
void log_evaluation_data_remarks(const Config& config, const data::SampleIndex& sample_index);

/// Logs how many samples of data.eval are also in data.train: a warning for equal conversations and
/// media, an info for shared media files. If data.check_at_start=false, samples have no
/// fingerprints, and only the names of the data files are compared. May reorder the fingerprints of
/// `train_index`.
void log_train_eval_overlap(const Config& config, const data::SampleIndex& eval_index, data::SampleIndex& train_index);

/// Throws UserError (kDoesNotFit) if reading the largest row group of the open Parquet files would
/// take more memory than the process may use. `limit_gb`: memory.limit_gb, in units of 10⁹ bytes.
/// Reads only metadata, because the kernel might kill the process while it reads a row group.
void check_row_group_memory(std::optional<double> limit_gb);

/// Returns a clause for messages about memory that suggests rewriting the Parquet file with the
/// largest row group; empty if no row group exceeds 64 MB.
std::string suggest_row_group_size();

/// Returns the file in the user's cache folder that keeps the checked samples of a data set for all
/// runs and plans. Each data set has one file, for the settings of its newest check, which keeps
/// the cache small. Empty if the data set has fewer than 10,000 samples or there is no cache
/// folder. `dataset`: path of the data set; relative paths start from the current folder.
std::filesystem::path get_shared_index_file(const std::string& dataset, int64_t samples);

/// Copies a file of checked samples atomically. Logs failures and throws nothing.
void copy_index_file(const std::filesystem::path& source_file, const std::filesystem::path& target_file);

}  // namespace vlmtrain::train

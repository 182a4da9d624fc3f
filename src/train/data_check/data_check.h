#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/index/sample_index.h"
#include "vlmtrain/data/order/mixture.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Checks the data set in `file` before the first step, as data.check_at_start says: all samples,
/// or as many as a plan needs. Shows the progress and logs the duration. `cache` is a file that
/// keeps the result for the next start of the run; empty: none. The user's cache keeps results of
/// large data sets for other runs (get_shared_index_file()).
data::SampleIndex check_data(const io::Records& records, const models::Processor& processor, const Config& config,
                             const std::filesystem::path& file, const std::filesystem::path& cache);

/// Checks all samples, whatever data.check_at_start says. Reads the cache but does not write it.
data::SampleIndex check_data_for_inspection(const io::Records& records, const models::Processor& processor,
                                            const Config& config, const std::filesystem::path& file,
                                            const std::filesystem::path& cache);

/// Records the bad samples in the ledger, as data.on_bad_sample says. Throws UserError (kBadData),
/// with the first of them, for data.on_bad_sample=fail or if no sample is usable; writes the
/// ledger to `ledger_file` before that. `began_ignoring_keys`: an older version began the run and
/// ignored keys that are errors now; the log names the setting that ignores them.
void handle_bad_samples(const data::SampleIndex& sample_index, const Config& config, const io::Records& records,
                        data::Ledger& ledger, const std::filesystem::path& ledger_file,
                        bool began_ignoring_keys = false);

/// Logs remarks on data.train before the first step: notices of its samples, if all were
/// checked; sources without images, videos or volumes; settings without effect on such data.
void log_training_data_remarks(const Config& config, const data::DataSet& records,
                               const data::SampleIndex& sample_index);

/// Logs how full the packs of the first epoch are. Does nothing if samples are not packed.
void log_packs(const data::SampleOrder& order);

/// Logs notices and media of data.eval.
void log_evaluation_data_remarks(const Config& config, const data::SampleIndex& sample_index);

/// Logs which samples of data.eval are trained on: a warning for equal conversations and media, a
/// remark for shared files. Samples that were not checked have no fingerprint; for them only file
/// names are compared.
void log_train_eval_overlap(const Config& config, const data::SampleIndex& eval_index, data::SampleIndex& train_index);

/// Throws UserError (kDoesNotFit) if the largest row group of the open Parquet files takes more
/// memory than the process may have, with `limit_gb` (memory.limit_gb) in GB of 10⁹ bytes. Reads no
/// row group, since reading one may get the process killed.
void check_row_groups(std::optional<double> limit_gb);

/// Returns a clause for messages about memory, with the way to rewrite the Parquet file with the
/// largest row group. Empty if row groups are small.
std::string suggest_row_group_size();

/// Returns the file in the user's cache that keeps the check of a data set for all its runs and
/// plans. A data set has one file, with the settings of its newest check, so that the cache stays
/// small. Empty for a data set that is checked in less than a second, and if there is no cache
/// folder.
std::filesystem::path get_shared_index_file(const std::string& dataset, int64_t samples);

/// Copies an index file atomically. Logs failures.
void copy_index_file(const std::filesystem::path& source_file, const std::filesystem::path& target_file);

}  // namespace vlmtrain::train

#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/data/data_set.h"
#include "vlmtrain/data/ledger.h"
#include "vlmtrain/data/order.h"
#include "vlmtrain/data/outlines.h"
#include "vlmtrain/io/records.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Looks at the data set in `file` before the first step, as data.check_at_start says: at all samples, or at as many as
/// a plan needs. Shows how far it is, and logs what it took. `cache`: a file that keeps the result for the next start
/// of the same run; empty: none. Of a large data set it is also kept for other runs and plans (shared_outlines.h).
data::SampleIndex check_data(const io::Records& records, const models::Processor& processor, const Config& config,
                             const std::filesystem::path& file, const std::filesystem::path& cache);

/// The same look, at all samples whatever data.check_at_start says; the cache is read and left as it is.
data::SampleIndex check_data_for_inspection(const io::Records& records, const models::Processor& processor,
                                            const Config& config, const std::filesystem::path& file,
                                            const std::filesystem::path& cache);

/// Enters the bad samples in the ledger, as data.on_bad_sample says. Throws UserError (kBadData) that names the first
/// of them with `fail`, or if no sample is usable; the ledger is written to `ledger_file` then. `began_ignoring_keys`:
/// the run was begun by a version that passed over keys which are refused now; the log names what reads them as before.
void handle_bad_samples(const data::SampleIndex& sample_index, const Config& config, const io::Records& records,
                        data::Ledger& ledger, const std::filesystem::path& ledger_file,
                        bool began_ignoring_keys = false);

/// Logs what was found out about data.train before the first step: notices of its samples, where all were looked at;
/// that none has an image, video or volume, in all or of a source; settings without effect on such data.
void log_training_data_remarks(const Config& config, const data::DataSet& records,
                               const data::SampleIndex& sample_index);

/// Logs how full the packs of the first epoch are; nothing where samples are not packed.
void log_packs(const data::SampleOrder& order);

/// The same of data.eval: notices and media alone.
void log_evaluation_data_remarks(const Config& config, const data::SampleIndex& sample_index);

/// Logs that samples of data.eval are trained on: warns where their conversations and media are, and mentions those
/// that share a file. `eval_index` and `train_index` have prints where the samples were looked at; without them only a
/// file that both keys name is found.
void log_train_eval_overlap(const Config& config, const data::SampleIndex& eval_index, data::SampleIndex& train_index);

/// Throws UserError (kDoesNotFit) where the largest row group of the Parquet files that are open takes more memory than
/// this process may have, `limit_gb` (memory.limit_gb) included. Reads no row group: the message comes in the place of
/// a process that is killed while it reads one.
void check_row_groups(std::optional<double> limit_gb);

/// Returns a clause that says how to write the Parquet file with the largest row group again, for messages about
/// memory. Empty where its row groups are small.
std::string suggest_row_group_size();

/// The file in the user's cache that keeps what was found out about the samples of a data set, for all its runs and
/// plans: one for each data set, of the settings that were looked with last, so that there are never many. Empty for a
/// data set that is looked at in less than a second anyway, and where there is no cache and none can be
/// made.
std::filesystem::path get_shared_index_file(const std::string& dataset, int64_t samples);

/// Makes `target_file` what `source_file` is, atomically. A file that cannot be read or written is a line in the log,
/// no error.
void copy_index_file(const std::filesystem::path& source_file, const std::filesystem::path& target_file);

}  // namespace vlmtrain::train

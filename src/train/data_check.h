#pragma once

#include <filesystem>
#include <vector>

#include "vlmtrain/data/ledger.h"
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

}  // namespace vlmtrain::train

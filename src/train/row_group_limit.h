#pragma once

#include <optional>
#include <string>

namespace vlmtrain::train {

/// Throws UserError (kDoesNotFit) where the largest row group of the Parquet files that are open takes more memory than
/// this process may have, `limit_gb` (memory.limit_gb) included. Reads no row group: the message comes in the place of
/// a process that is killed while it reads one.
void check_row_groups(std::optional<double> limit_gb);

/// Returns a clause that says how to write the Parquet file with the largest row group again, for messages about
/// memory. Empty where its row groups are small.
std::string suggest_row_group_size();

}  // namespace vlmtrain::train

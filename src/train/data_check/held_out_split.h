#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "vlmtrain/data/held_out_again.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Splits a source of data.train of which data.eval holds out a share: as held_out.json of the run
/// in output.dir says, else at random. Logs differences where `log_changes`. Throws as
/// data::hold_out() and data::restore_hold_out().
data::HoldOutSplit split_source(const Config& config, const data::Source& source, const io::Records& records,
                                bool log_changes);

/// Writes held_out.json into the run's folder for its next start, unless it has this split. Reads
/// the texts of held-out records; with data.check_at_start=false only of a few.
void save_held_out(const Config& config, const std::vector<SourceSplit>& sources);

}  // namespace vlmtrain::train

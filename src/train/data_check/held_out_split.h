#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <vector>

#include "vlmtrain/data/held_out_again.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Divides a source of data.train, of which data.eval holds out a share: as the run in output.dir remembers it
/// (held_out.json), else drawn. What has changed is logged where `log_changes`. Errors as data::hold_out() and
/// data::restore_hold_out().
data::HoldOutSplit split_source(const Config& config, const data::Source& source, const io::Records& records,
                                bool log_changes);

/// Writes held_out.json into the run's folder, where it is not there or not of this division: for the run's next start.
/// Reads the texts of what is held out; with data.check_at_start=false of a few only.
void save_held_out(const Config& config, const std::vector<SourceSplit>& sources);

}  // namespace vlmtrain::train

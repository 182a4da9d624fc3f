#pragma once

#include <string>
#include <vector>

#include "vlmtrain/data/media_census.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns a sentence for each setting that is not its default and that changes nothing, with the reason: the samples
/// have no media that it is about, or another setting turns it off. `census`: of the samples of data.train.
std::vector<std::string> find_unused_settings(const Config& config, const data::MediaCounts& census,
                                              bool predicts_masks);

}  // namespace vlmtrain::train

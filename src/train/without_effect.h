#pragma once

#include <string>
#include <vector>

#include "vlmtrain/data/media_census.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

/// Returns a sentence for each setting that is not its default and that changes nothing, with the reason: the samples
/// have no media that it is about, or another setting turns it off. `census`: of the samples of data.train.
std::vector<std::string> settings_without_effect(const Config& config, const data::MediaCensus& census,
                                                 bool draws_masks);

}  // namespace vlmtrain::train

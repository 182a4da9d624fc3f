#pragma once

#include <string>

#include "vlmtrain/data/histogram.h"

namespace vlmtrain::report {

/// A picture for a page: a bar for each bin, its count above it, where it begins below it, and all of that where the
/// mouse stands. Colours are those of common.css.
std::string render_histogram_svg(const data::Histogram& histogram);

}  // namespace vlmtrain::report

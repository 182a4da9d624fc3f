#pragma once

#include <string>

#include "vlmtrain/evaluation/mask_score.h"

namespace vlmtrain::app {

/// Scores of masks as `eval` prints them for people, all of them, by task and by what they show; empty where there is
/// no mask.
std::string format_mask_table(const evaluation::MaskScores& scores);

}  // namespace vlmtrain::app

#pragma once

#include <string>
#include <vector>

#include "vlmtrain/data/tasks.h"

namespace vlmtrain::train {

/// The weights that training.task_weights gives, `name=1.5`, by task, scaled so that their mean over the samples is 1.
/// Throws UserError (kUsage) that lists all that is wrong with the entries.
std::vector<double> parse_task_weights(const std::vector<std::string>& entries, const data::Tasks& tasks);

/// By 1 / samples, scaled alike.
std::vector<double> compute_inverse_size_weights(const data::Tasks& tasks);

}  // namespace vlmtrain::train

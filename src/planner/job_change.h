#pragma once

#include <string>
#include <vector>

#include "planner/suggestions/change_evaluator.h"

namespace vlmtrain::planner {

/// Another way to train the same model on the same samples.
struct JobChange {
  std::vector<std::string> arguments;  ///< as Suggestion::arguments
  std::string description;
  Job job;
};

/// Adapters as a configuration makes them: what is frozen gets none.
nn::LoraSettings make_lora_settings(const Job& job, int64_t rank);

/// Whether anything is trained that gets some: not where only what draws masks is.
bool can_have_adapters(const models::FrozenParts& frozen);

/// What changes numbers by rounding only or in the optimizer: the precision, the optimizer's states, the frozen
/// weights.
std::vector<JobChange> list_numeric_changes(const ChangeEvaluator::Problem& problem);
/// What trains fewer parameters. Never so few that nothing is left.
std::vector<JobChange> list_training_changes(const ChangeEvaluator::Problem& problem);
/// What takes least memory of all that still trains adapters in every part; nothing if the job is that already.
std::vector<JobChange> make_smallest_job(const ChangeEvaluator::Problem& problem);

}  // namespace vlmtrain::planner

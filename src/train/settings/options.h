#pragma once

#include "vlmtrain/train/config.h"

namespace vlmtrain::train {

// The functions below declare the options of a section. `options` must outlive `table`.

void declare_options(OptionTable& table, ModelOptions& options);
void declare_options(OptionTable& table, HubOptions& options);
void declare_options(OptionTable& table, LoraOptions& options);
/// Declares training.eval_*, the options of early stopping, and the section `eval`.
void declare_options(OptionTable& table, EvaluationOptions& options);
void declare_options(OptionTable& table, OutputOptions& options);
void declare_options(OptionTable& table, DistributedOptions& options);

}  // namespace vlmtrain::train

#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "app/sample_arguments.h"
#include "vlmtrain/planner/limit.h"
#include "vlmtrain/train/config.h"

namespace vlmtrain::app {

/// What `vlmtrain plan` is asked.
struct PlanArguments {
  std::string gpu;
  std::optional<double> gpu_gigabytes;
  std::string config;
  std::vector<std::string> key_flags;  ///< flags that are configuration keys by other names, as key=value
  std::vector<std::string> overrides;  ///< key=value; they come after the flags, so that they can be added to them
  SampleArguments samples;
  std::string finetune;
  std::string tokenizer;
  int64_t world_size = 1;
  int64_t nodes = 1;
  double network_gbit = 100;
  bool json = false;
  std::string timeline;
  bool compare = false;

  /// Whether the samples are those of the flags and not of a data set.
  bool describes_samples() const { return samples.any(); }
};

/// Binds the command's options to `arguments`, which must outlive it. Of a flag that stands twice the last one counts.
void declare_plan_arguments(CLI::App& command, PlanArguments& arguments);

/// The card to plan for: one that is named, or that of this machine. Throws UserError (kUsage).
planner::TargetCard card_of(const PlanArguments& arguments);

/// The configuration, if there is one, with what the flags say; a 7B model with LoRA if nothing says which. Throws
/// UserError (kUsage), also for arguments that contradict each other.
train::Config config_of(const PlanArguments& arguments);

}  // namespace vlmtrain::app

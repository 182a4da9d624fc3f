#pragma once

#include <CLI/CLI.hpp>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "app/sample_arguments.h"

namespace vlmtrain::app {

/// The rank where --finetune lora says none.
inline constexpr int64_t kDefaultLoraRank = 16;

/// What `vlmtrain plan` is asked.
struct PlanArguments {
  std::string gpu;
  std::optional<double> gpu_gigabytes;
  std::string config;
  std::vector<std::string> key_flags;  ///< flags that are configuration keys by other names, as key=value
  std::vector<std::string> overrides;  ///< key=value; they come after the flags, so that they can be added to them
  SampleFlags samples;
  std::string finetune;
  std::string tokenizer;
  int64_t world_size = 1;
  int64_t nodes = 1;
  double network_gbit = 100;
  bool json = false;
  std::string timeline;
  bool compare = false;

  /// The last word on a key counts.
  std::vector<std::string> all_overrides() const;

  /// Whether the samples are those of the flags and not of a data set.
  bool has_sample_flags() const { return samples.has_any(); }
};

/// Binds the command's options to `arguments`, which must outlive it. Of a flag that stands twice the last one counts.
void declare(CLI::App& command, PlanArguments& arguments);

}  // namespace vlmtrain::app

#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/savings_table.h"

namespace vlmtrain::train {

/// The environment that a measurement is valid for.
struct RunEnvironment {
  std::string device;    ///< for example "NVIDIA H100 80GB HBM3"; on the CPU the processor's name
  std::string driver;    ///< version of the kernel module; empty on the CPU
  std::string libtorch;  ///< for example "2.11.0"
  std::string host;

  bool operator==(const RunEnvironment&) const = default;
};

/// Returns the environment of this machine for a GPU with the name that its driver reports.
RunEnvironment describe_gpu_environment(const std::string& device_name);

/// Returns the environment of this machine for runs on the CPU.
RunEnvironment describe_cpu_environment();

/// Measurements of past runs in one environment, relative to their plans.
struct PastRuns {
  int64_t runs = 0;
  std::string last_date{};  ///< date of the newest run, for example "2026-11-23"
  std::optional<int64_t> context_bytes =
      std::nullopt;  ///< the most GPU memory that a process used outside PyTorch's allocator
  /// Measured divided by predicted seconds of the same steps; the newest run has half of the
  /// weight.
  std::optional<double> step_time_ratio = std::nullopt;
  std::optional<double> peak_ratio =
      std::nullopt;  ///< the most bytes reserved (on the CPU: resident) divided by the planned bytes

  /// Returns the measurements after a newer run, which may have measured only some of them.
  PastRuns combine(const PastRuns& newer) const;
  nlohmann::ordered_json to_json() const;
  /// Returns a sentence for people.
  std::string description() const;
};

/// Returns the file of this user's runs: $VLMTRAIN_PAST_RUNS, else vlmtrain/past_runs.json in
/// $XDG_STATE_HOME or ~/.local/state. Empty if VLMTRAIN_PAST_RUNS=off or no such folder exists.
std::filesystem::path find_past_runs_file();

/// Returns the measurements in `file` for an environment; nullopt if it has none. Logs that a
/// damaged file is ignored.
std::optional<PastRuns> load_past_runs(const std::filesystem::path& file, const RunEnvironment& environment);

/// Adds a run to the measurements in `file`. Replaces the file atomically, under a lock; it keeps
/// the 64 environments that were used last. Failures are logged and do not fail the run.
void record_run(const std::filesystem::path& file, const RunEnvironment& environment, const PastRuns& measured_run);

/// Sets the context bytes of `target` to the measured ones.
void calibrate(planner::TargetGpu& target, const PastRuns& past_runs);

/// Multiplies the predicted times of `plan` by the measured ratio.
void calibrate(planner::Plan& plan, const PastRuns& past_runs);

/// Multiplies the predicted times of a table of savings by the measured ratio.
void calibrate(std::vector<planner::SavingsRow>& rows, const PastRuns& past_runs);

}  // namespace vlmtrain::train

#pragma once

#include <nlohmann/json_fwd.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/plan.h"
#include "vlmtrain/planner/savings_table.h"

namespace vlmtrain::train {

/// The environment in which a measurement is valid.
struct RunEnvironment {
  std::string device;            ///< for example "NVIDIA H100 80GB HBM3"; on the CPU the processor's name
  std::string driver_version;    ///< version of the kernel module; empty on the CPU
  std::string libtorch_version;  ///< for example "2.11.0"
  std::string host_name;         ///< of this machine, as get_host_name() returns it

  bool operator==(const RunEnvironment&) const = default;
};

/// Returns the environment of this machine for a GPU with the name that its driver reports.
RunEnvironment get_gpu_run_environment(const std::string& device_name);

/// Returns the environment of this machine for runs on the CPU.
RunEnvironment get_cpu_run_environment();

/// Measurements of past runs in one environment, relative to their plans.
struct PastRunMeasurements {
  int64_t num_runs = 0;         ///< runs that the measurements include
  std::string last_run_date{};  ///< date of the newest run, for example "2026-11-23"
  /// Maximum GPU memory of a process outside PyTorch's allocator; nullopt on the CPU.
  std::optional<int64_t> context_bytes = std::nullopt;
  /// Measured divided by predicted seconds of the same steps: the geometric mean of the newest run
  /// and the value before it. Nullopt on the CPU.
  std::optional<double> measured_to_predicted_step_time = std::nullopt;
  /// Maximum of the peak bytes of a run (reserved on a GPU, resident on the CPU) divided by the
  /// planned bytes.
  std::optional<double> peak_to_planned_memory_ratio = std::nullopt;

  /// Returns these measurements combined with those of a newer run. Keeps a value that `newer`
  /// lacks.
  PastRunMeasurements merge_newer_runs(const PastRunMeasurements& newer) const;
  /// Returns an entry of the file, without the environment; missing values are null.
  nlohmann::ordered_json to_json() const;
  /// Returns a sentence for the log.
  std::string describe() const;
};

/// Returns the file with the measurements of this user's runs: $VLMTRAIN_PAST_RUNS or
/// vlmtrain/past_runs.json in $XDG_STATE_HOME or ~/.local/state. Empty if VLMTRAIN_PAST_RUNS=off or
/// if neither $XDG_STATE_HOME nor $HOME is an absolute path.
std::filesystem::path find_past_runs_file();

/// Returns the measurements in `file` for an environment; nullopt if it has none. Warns
/// of a damaged file and ignores it. An empty `file` or device has no measurements.
std::optional<PastRunMeasurements> load_past_runs(const std::filesystem::path& file, const RunEnvironment& environment);

/// Adds a run to the measurements in `file`, with today's date. Replaces the file atomically, under
/// a lock, and keeps the 64 most recently used environments. Logs failures and throws nothing. Does
/// nothing for an empty `file`.
void save_measured_run(const std::filesystem::path& file, const RunEnvironment& environment,
                       const PastRunMeasurements& measured_run);

/// Sets the context bytes of `target` to the measured ones, or to the larger ones if `target` has
/// been measured as well.
void calibrate_with_past_runs(planner::TargetGpu& target, const PastRunMeasurements& past_runs);

/// Multiplies the predicted step times of `plan` by the measured ratio, if there is one.
void calibrate_with_past_runs(planner::Plan& plan, const PastRunMeasurements& past_runs);

/// Multiplies the predicted step times of a savings table by the measured ratio, if there is one.
void calibrate_with_past_runs(std::vector<planner::SavingsRow>& rows, const PastRunMeasurements& past_runs);

}  // namespace vlmtrain::train

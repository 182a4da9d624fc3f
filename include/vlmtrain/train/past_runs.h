#pragma once

#include <nlohmann/json.hpp>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "vlmtrain/planner/ladder.h"
#include "vlmtrain/planner/plan.h"

namespace vlmtrain::train {

/// What runs were on; what they measured is of use nowhere else.
struct RunEnvironment {
  std::string device;    ///< NVIDIA H100 80GB HBM3; on the CPU the processor's name
  std::string driver;    ///< of the kernel's module; empty on the CPU
  std::string libtorch;  ///< 2.11.0
  std::string host;

  bool operator==(const RunEnvironment&) const = default;
};

/// On this machine, with a card of this name, as its driver calls it.
RunEnvironment describe_gpu_environment(const std::string& device_name);
RunEnvironment describe_cpu_environment();

/// What runs at one place measured beside what was planned for them.
struct PastRuns {
  int64_t runs = 0;
  std::string last_date{};  ///< day of the last one, 2026-11-23
  std::optional<int64_t> context_bytes =
      std::nullopt;  ///< that the process took of the card beside PyTorch's allocator, at most
  /// Measured seconds of steps by those predicted for the same steps; the newest run counts half.
  std::optional<double> step_time_ratio = std::nullopt;
  std::optional<double> peak_ratio = std::nullopt;  ///< most bytes reserved (on the CPU: resident) by those planned

  /// The same after one more run, which measured some of this.
  PastRuns combine(const PastRuns& newer) const;
  nlohmann::ordered_json to_json() const;
  /// A sentence for people.
  std::string description() const;
};

/// The file of this user's runs: $VLMTRAIN_PAST_RUNS, else vlmtrain/past_runs.json in $XDG_STATE_HOME or
/// ~/.local/state. Empty where there is to be none: VLMTRAIN_PAST_RUNS=off, or no such folder.
std::filesystem::path find_past_runs_file();

/// What the file says of a place; nothing where it says nothing. A damaged file is passed over with a line in the log.
std::optional<PastRuns> load_past_runs(const std::filesystem::path& file, const RunEnvironment& environment);

/// Adds a run to what the file says of a place. The file is replaced as a whole, and by one process at a time; it holds
/// the 64 places that were run on last. What is in the way is said in the log, and is no error of the run.
void record_run(const std::filesystem::path& file, const RunEnvironment& environment, const PastRuns& measured_run);

/// A card as runs found it: its context is the measured one.
void calibrate(planner::TargetGpu& target, const PastRuns& past_runs);

/// Predicted times, multiplied by what runs took longer.
void calibrate(planner::Plan& plan, const PastRuns& past_runs);
void calibrate(std::vector<planner::SavingsRow>& rows, const PastRuns& past_runs);

}  // namespace vlmtrain::train

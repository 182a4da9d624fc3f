#include "vlmtrain/train/past_runs.h"

#include <fcntl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/libtorch.h"

namespace vlmtrain::train {

namespace {

/// Version of the file format.
constexpr int64_t kPastRunsFileVersion = 1;
/// More combinations of machine, device and versions than a user has at a time. Bounds the file.
constexpr size_t kMaxEnvironments = 64;
/// Far above the size of kMaxEnvironments entries. A larger file is from another program.
constexpr uintmax_t kMaxFileBytes = 1 << 20;
/// Maximum length of a device name, version or host name. Longer than any real one.
constexpr size_t kMaxNameLength = 256;
/// Far above the number of any user's runs.
constexpr int64_t kMaxRecordedRuns = 1'000'000'000;
/// Far above the size of a CUDA context. A larger value includes memory of other processes.
constexpr int64_t kMaxContextBytes = int64_t{64} << 30;
/// Largest plausible ratio of measurement and plan.
constexpr double kMaxMeasuredToPlannedRatio = 1000;
/// Longest wait for other processes, which hold the lock for milliseconds. Not tuned.
constexpr std::chrono::milliseconds kLockTimeout{1000};

/// An entry of the file.
struct PastRunsEntry {
  RunEnvironment environment;
  PastRunMeasurements past_runs;
};

UserError make_invalid_file_error(const std::filesystem::path& file, const std::string& problem) {
  return data_error("{}: {}", file.string(), problem);
}

/// Parses an entry. Throws UserError (kBadData) for numbers that no run can measure, since plans
/// would be useless with them.
PastRunsEntry parse_past_runs_entry(const nlohmann::json& json, const std::filesystem::path& file) {
  const std::string source = file.string();
  const auto parse_name = [&](const char* key) {
    auto text = io::get<std::string>(json, key, source);
    if (text.size() > kMaxNameLength) throw make_invalid_file_error(file, fmt::format("{} is too long", key));
    return text;
  };
  const auto get_number = [&]<class Number>(const char* key, Number min_value,
                                            Number max_value) -> std::optional<Number> {
    if (!json.contains(key) || json[key].is_null()) return std::nullopt;
    const auto value = io::get<Number>(json, key, source);
    if (!(value >= min_value && value <= max_value))
      throw make_invalid_file_error(file, fmt::format("{} is {}", key, value));
    return value;
  };
  PastRunsEntry entry{
      .environment = {parse_name("device"), parse_name("driver"), parse_name("libtorch"), parse_name("host")},
      .past_runs = {}};
  entry.past_runs.num_runs = get_number("runs", int64_t{1}, kMaxRecordedRuns).value_or(1);
  entry.past_runs.last_run_date = parse_name("last");
  entry.past_runs.context_bytes = get_number("context_bytes", int64_t{1}, kMaxContextBytes);
  entry.past_runs.measured_to_predicted_step_time =
      get_number("step_time_ratio", 1 / kMaxMeasuredToPlannedRatio, kMaxMeasuredToPlannedRatio);
  entry.past_runs.peak_to_planned_memory_ratio =
      get_number("peak_ratio", 1 / kMaxMeasuredToPlannedRatio, kMaxMeasuredToPlannedRatio);
  return entry;
}

std::vector<PastRunsEntry> read_past_runs_entries(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) throw make_invalid_file_error(file, "is not a regular file");
  if (std::filesystem::file_size(file) > kMaxFileBytes)
    throw make_invalid_file_error(file, "is larger than any file that runs write");
  const auto json = io::read_json(file);
  const std::string source = file.string();
  if (const auto version = io::get<int64_t>(json, "version", source); version != kPastRunsFileVersion) {
    throw make_invalid_file_error(
        file, fmt::format("has version {}, and this program supports {}", version, kPastRunsFileVersion));
  }
  if (!json.contains("places") || !json["places"].is_array() || json["places"].size() > kMaxEnvironments) {
    throw make_invalid_file_error(file, "places is not a list of at most 64 entries");
  }
  std::vector<PastRunsEntry> entries;
  entries.reserve(json["places"].size() + 1);
  for (const auto& environment : json["places"]) entries.push_back(parse_past_runs_entry(environment, file));
  return entries;
}

/// Returns the entries; if the file is invalid, warns and returns no entries.
std::vector<PastRunsEntry> try_read_past_runs_entries(const std::filesystem::path& file) {
  try {
    return read_past_runs_entries(file);
  } catch (const std::exception& error) {
    spdlog::warn("measurements of earlier runs are not used: {}; VLMTRAIN_PAST_RUNS=off ignores the file",
                 to_printable(error.what()));
    return {};
  }
}

std::string format_past_runs_entries(const std::vector<PastRunsEntry>& entries) {
  auto environments = nlohmann::ordered_json::array();
  for (const auto& [environment, past_runs] : entries) {
    nlohmann::ordered_json json{{"device", environment.device},
                                {"driver", environment.driver_version},
                                {"libtorch", environment.libtorch_version},
                                {"host", environment.host_name}};
    json.update(past_runs.to_json());
    environments.push_back(std::move(json));
  }
  return io::to_json_string(nlohmann::ordered_json{{"version", kPastRunsFileVersion}, {"places", environments}}, 2) +
         "\n";
}

/// A lock on `file`.lock against other processes. It is released with the object, and by the
/// operating system when the process ends. Waits up to kLockTimeout.
class FileLock {
 public:
  explicit FileLock(const std::filesystem::path& file)
      : descriptor_(
            open((file.string() + ".lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600)) {
    const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
    constexpr std::chrono::milliseconds kLockRetryPause{20};
    while (descriptor_ >= 0 && io::lock_file(descriptor_) != 0) {
      if (std::chrono::steady_clock::now() > deadline) return;
      std::this_thread::sleep_for(kLockRetryPause);
    }
    is_locked_ = descriptor_ >= 0;
  }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;
  ~FileLock() {
    if (descriptor_ >= 0) close(descriptor_);
  }
  bool is_locked() const { return is_locked_; }

 private:
  int descriptor_;
  bool is_locked_ = false;
};

/// Returns the larger of two optional numbers; nullopt if both are missing.
template <class Number>
std::optional<Number> compute_optional_max(const std::optional<Number>& a, const std::optional<Number>& b) {
  return a && b ? std::max(a, b) : a ? a : b;
}

void scale_step_time(planner::StepEstimate& estimate, double ratio) {
  estimate.step_seconds *= ratio;
  estimate.tokens_per_second /= ratio;
}

}  // namespace

RunEnvironment get_gpu_run_environment(const std::string& device_name) {
  return {.device = device_name,
          .driver_version = memory::read_kernel_module_version(),
          .libtorch_version = memory::get_libtorch_info().compiled_version,
          .host_name = get_host_name()};
}

RunEnvironment get_cpu_run_environment() {
  return {.device = memory::read_cpu_info().model,
          .driver_version = "",
          .libtorch_version = memory::get_libtorch_info().compiled_version,
          .host_name = get_host_name()};
}

PastRunMeasurements PastRunMeasurements::merge_newer_runs(const PastRunMeasurements& newer) const {
  PastRunMeasurements combined{
      .num_runs = std::min(kMaxRecordedRuns, num_runs + newer.num_runs),
      .last_run_date = newer.last_run_date,
      .context_bytes = compute_optional_max(context_bytes, newer.context_bytes),
      .measured_to_predicted_step_time = newer.measured_to_predicted_step_time ? newer.measured_to_predicted_step_time
                                                                               : measured_to_predicted_step_time,
      .peak_to_planned_memory_ratio =
          compute_optional_max(peak_to_planned_memory_ratio, newer.peak_to_planned_memory_ratio)};
  if (measured_to_predicted_step_time && newer.measured_to_predicted_step_time) {
    combined.measured_to_predicted_step_time =
        std::sqrt(*measured_to_predicted_step_time * *newer.measured_to_predicted_step_time);
  }
  return combined;
}

nlohmann::ordered_json PastRunMeasurements::to_json() const {
  const auto to_json_or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  return {{"runs", num_runs},
          {"last", last_run_date},
          {"context_bytes", to_json_or_null(context_bytes)},
          {"step_time_ratio", to_json_or_null(measured_to_predicted_step_time)},
          {"peak_ratio", to_json_or_null(peak_to_planned_memory_ratio)}};
}

std::string PastRunMeasurements::describe() const {
  std::string text =
      fmt::format("{} on this machine, the last on {}",
                  num_runs == 1 ? "one run" : format_with_commas(num_runs) + " runs", to_printable(last_run_date));
  if (context_bytes) {
    text += fmt::format("; CUDA used {:.2f} GB in addition to PyTorch's memory, which this plan includes",
                        to_gigabytes(*context_bytes));
  }
  if (measured_to_predicted_step_time) {
    text += fmt::format(
        "; steps took {:.3g} times the estimate from operations and data sheets, and predictions are scaled by it",
        *measured_to_predicted_step_time);
  }
  if (peak_to_planned_memory_ratio)
    text += fmt::format("; memory peaked at {:.1f} % of the plan at most", 100 * *peak_to_planned_memory_ratio);
  return text;
}

std::filesystem::path find_past_runs_file() {
  const auto get_environment_variable = [](const char* name) -> std::string_view {
    const char* const value = std::getenv(name);
    return value == nullptr ? "" : value;
  };
  const auto override_path = get_environment_variable("VLMTRAIN_PAST_RUNS");
  if (override_path == "off") return {};
  if (!override_path.empty()) return override_path;
  constexpr const char* kPastRunsPath = "vlmtrain/past_runs.json";
  // The XDG Base Directory Specification says that relative paths are ignored.
  if (const std::filesystem::path state = get_environment_variable("XDG_STATE_HOME"); state.is_absolute())
    return state / kPastRunsPath;
  if (const std::filesystem::path home = get_environment_variable("HOME"); home.is_absolute())
    return home / ".local/state" / kPastRunsPath;
  return {};
}

std::optional<PastRunMeasurements> load_past_runs(const std::filesystem::path& file,
                                                  const RunEnvironment& environment) {
  if (file.empty() || environment.device.empty()) return std::nullopt;
  for (const auto& entry : try_read_past_runs_entries(file)) {
    if (entry.environment == environment) return entry.past_runs;
  }
  return std::nullopt;
}

void save_measured_run(const std::filesystem::path& file, const RunEnvironment& environment,
                       const PastRunMeasurements& measured_run) {
  if (file.empty() || environment.device.empty()) return;
  try {
    if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
    const FileLock lock(file);
    if (!lock.is_locked()) throw run_error("{} cannot be locked", file.string() + ".lock");
    auto entries = try_read_past_runs_entries(file);
    PastRunsEntry new_entry{environment, measured_run};
    new_entry.past_runs.last_run_date = get_current_date();
    const auto existing_entry = std::ranges::find(entries, environment, &PastRunsEntry::environment);
    if (existing_entry != entries.end()) {
      new_entry.past_runs = existing_entry->past_runs.merge_newer_runs(new_entry.past_runs);
      entries.erase(existing_entry);
    }
    if (entries.size() >= kMaxEnvironments) entries.erase(entries.begin());
    entries.push_back(std::move(new_entry));
    io::write_file(file, format_past_runs_entries(entries));
  } catch (const std::exception& error) {
    spdlog::info("measurements of this run are not saved for later plans: {}; VLMTRAIN_PAST_RUNS sets the file",
                 to_printable(error.what()));
  }
}

void calibrate_with_past_runs(planner::TargetGpu& target, const PastRunMeasurements& past_runs) {
  if (!past_runs.context_bytes) return;
  target.context_bytes =
      target.is_context_measured ? std::max(target.context_bytes, *past_runs.context_bytes) : *past_runs.context_bytes;
  target.is_context_measured = true;
}

void calibrate_with_past_runs(planner::Plan& plan, const PastRunMeasurements& past_runs) {
  if (!past_runs.measured_to_predicted_step_time) return;
  scale_step_time(plan.best_estimate, *past_runs.measured_to_predicted_step_time);
  for (auto& estimate : plan.alternatives) scale_step_time(estimate, *past_runs.measured_to_predicted_step_time);
  if (!plan.average_step_estimate) return;
  plan.average_step_estimate->step_seconds *= *past_runs.measured_to_predicted_step_time;
  plan.average_step_estimate->tokens_per_second /= *past_runs.measured_to_predicted_step_time;
  plan.average_step_estimate->samples_per_second /= *past_runs.measured_to_predicted_step_time;
}

void calibrate_with_past_runs(std::vector<planner::SavingsRow>& rows, const PastRunMeasurements& past_runs) {
  if (!past_runs.measured_to_predicted_step_time) return;
  for (auto& row : rows) {
    scale_step_time(row.single_sample_estimate, *past_runs.measured_to_predicted_step_time);
    if (row.best_estimate) scale_step_time(*row.best_estimate, *past_runs.measured_to_predicted_step_time);
  }
}

}  // namespace vlmtrain::train

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
#include "vlmtrain/base/printable.h"
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
constexpr int64_t kFileVersion = 1;
/// More combinations of machine, device and versions than a user has at a time. Bounds the file.
constexpr size_t kMaxEnvironments = 64;
/// Far above the size of kMaxEnvironments entries. A larger file is from another program.
constexpr uintmax_t kMaxFileBytes = 1 << 20;
/// Maximum length of a device name, version or host name. Longer than any real one.
constexpr size_t kMaxNameLength = 256;
/// Far above the number of any user's runs.
constexpr int64_t kMaxRuns = 1'000'000'000;
/// Far above the size of a CUDA context. A larger value includes memory of other processes.
constexpr int64_t kMaxContextBytes = int64_t{64} << 30;
/// Largest plausible ratio of measurement and plan.
constexpr double kMaxRatio = 1000;
/// Longest wait for other processes, which hold the lock for milliseconds. Not tuned.
constexpr std::chrono::milliseconds kLockTimeout{1000};

/// An entry of the file.
struct EnvironmentEntry {
  RunEnvironment environment;
  PastRuns past_runs;
};

UserError make_invalid_file_error(const std::filesystem::path& file, const std::string& problem) {
  return data_error("{}: {}", file.string(), problem);
}

/// Parses an entry. Throws UserError (kBadData) for numbers that no run can measure, since plans
/// would be useless with them.
EnvironmentEntry parse_entry(const nlohmann::json& json, const std::filesystem::path& file) {
  const std::string source = file.string();
  const auto get_name = [&](const char* key) {
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
  EnvironmentEntry entry{
      .environment = {get_name("device"), get_name("driver"), get_name("libtorch"), get_name("host")}, .past_runs = {}};
  entry.past_runs.num_runs = get_number("runs", int64_t{1}, kMaxRuns).value_or(1);
  entry.past_runs.last_run_date = get_name("last");
  entry.past_runs.context_bytes = get_number("context_bytes", int64_t{1}, kMaxContextBytes);
  entry.past_runs.step_time_ratio = get_number("step_time_ratio", 1 / kMaxRatio, kMaxRatio);
  entry.past_runs.peak_ratio = get_number("peak_ratio", 1 / kMaxRatio, kMaxRatio);
  return entry;
}

std::vector<EnvironmentEntry> read_entries(const std::filesystem::path& file) {
  std::error_code error;
  const auto status = std::filesystem::status(file, error);
  if (!std::filesystem::exists(status)) return {};
  if (!std::filesystem::is_regular_file(status)) throw make_invalid_file_error(file, "is not a regular file");
  if (std::filesystem::file_size(file) > kMaxFileBytes)
    throw make_invalid_file_error(file, "is larger than any file that runs write");
  const auto json = io::read_json(file);
  const std::string source = file.string();
  if (const auto version = io::get<int64_t>(json, "version", source); version != kFileVersion) {
    throw make_invalid_file_error(file,
                                  fmt::format("has version {}, and this program supports {}", version, kFileVersion));
  }
  if (!json.contains("places") || !json["places"].is_array() || json["places"].size() > kMaxEnvironments) {
    throw make_invalid_file_error(file, "places is not a list of at most 64 entries");
  }
  std::vector<EnvironmentEntry> entries;
  entries.reserve(json["places"].size() + 1);
  for (const auto& environment : json["places"]) entries.push_back(parse_entry(environment, file));
  return entries;
}

/// Returns the entries; if the file is invalid, warns and returns no entries.
std::vector<EnvironmentEntry> try_read_entries(const std::filesystem::path& file) {
  try {
    return read_entries(file);
  } catch (const std::exception& error) {
    spdlog::warn("measurements of earlier runs are not used: {}; VLMTRAIN_PAST_RUNS=off ignores the file",
                 to_printable(error.what()));
    return {};
  }
}

std::string format_entries(const std::vector<EnvironmentEntry>& entries) {
  auto environments = nlohmann::ordered_json::array();
  for (const auto& [environment, past_runs] : entries) {
    nlohmann::ordered_json json{{"device", environment.device},
                                {"driver", environment.driver},
                                {"libtorch", environment.libtorch},
                                {"host", environment.host}};
    json.update(past_runs.to_json());
    environments.push_back(std::move(json));
  }
  return io::to_json_string(nlohmann::ordered_json{{"version", kFileVersion}, {"places", environments}}, 2) + "\n";
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
std::optional<Number> max_if_any(const std::optional<Number>& a, const std::optional<Number>& b) {
  return a && b ? std::max(a, b) : a ? a : b;
}

void scale_step_time(planner::StepEstimate& estimate, double ratio) {
  estimate.step_seconds *= ratio;
  estimate.tokens_per_second /= ratio;
}

}  // namespace

RunEnvironment describe_gpu_environment(const std::string& device_name) {
  return {.device = device_name,
          .driver = memory::read_kernel_module_version(),
          .libtorch = memory::describe_libtorch().compiled_version,
          .host = get_host_name()};
}

RunEnvironment describe_cpu_environment() {
  return {.device = memory::read_cpu_info().model,
          .driver = "",
          .libtorch = memory::describe_libtorch().compiled_version,
          .host = get_host_name()};
}

PastRuns PastRuns::combine(const PastRuns& newer) const {
  PastRuns combined{.num_runs = std::min(kMaxRuns, num_runs + newer.num_runs),
                    .last_run_date = newer.last_run_date,
                    .context_bytes = max_if_any(context_bytes, newer.context_bytes),
                    .step_time_ratio = newer.step_time_ratio ? newer.step_time_ratio : step_time_ratio,
                    .peak_ratio = max_if_any(peak_ratio, newer.peak_ratio)};
  if (step_time_ratio && newer.step_time_ratio) {
    combined.step_time_ratio = std::sqrt(*step_time_ratio * *newer.step_time_ratio);
  }
  return combined;
}

nlohmann::ordered_json PastRuns::to_json() const {
  const auto to_json_or_null = [](const auto& value) {
    return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json();
  };
  return {{"runs", num_runs},
          {"last", last_run_date},
          {"context_bytes", to_json_or_null(context_bytes)},
          {"step_time_ratio", to_json_or_null(step_time_ratio)},
          {"peak_ratio", to_json_or_null(peak_ratio)}};
}

std::string PastRuns::description() const {
  std::string text =
      fmt::format("{} on this machine, the last on {}",
                  num_runs == 1 ? "one run" : format_with_commas(num_runs) + " runs", to_printable(last_run_date));
  if (context_bytes) {
    text += fmt::format("; CUDA used {:.2f} GB in addition to PyTorch's memory, which this plan includes",
                        to_gigabytes(*context_bytes));
  }
  if (step_time_ratio) {
    text += fmt::format(
        "; steps took {:.3g} times the estimate from operations and data sheets, and predictions are scaled by it",
        *step_time_ratio);
  }
  if (peak_ratio) text += fmt::format("; memory peaked at {:.1f} % of the plan at most", 100 * *peak_ratio);
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

std::optional<PastRuns> load_past_runs(const std::filesystem::path& file, const RunEnvironment& environment) {
  if (file.empty() || environment.device.empty()) return std::nullopt;
  for (const auto& entry : try_read_entries(file)) {
    if (entry.environment == environment) return entry.past_runs;
  }
  return std::nullopt;
}

void record_run(const std::filesystem::path& file, const RunEnvironment& environment, const PastRuns& measured_run) {
  if (file.empty() || environment.device.empty()) return;
  try {
    if (file.has_parent_path()) std::filesystem::create_directories(file.parent_path());
    const FileLock lock(file);
    if (!lock.is_locked()) throw run_error("{} cannot be locked", file.string() + ".lock");
    auto entries = try_read_entries(file);
    EnvironmentEntry new_entry{environment, measured_run};
    new_entry.past_runs.last_run_date = get_current_date();
    const auto existing = std::ranges::find(entries, environment, &EnvironmentEntry::environment);
    if (existing != entries.end()) {
      new_entry.past_runs = existing->past_runs.combine(new_entry.past_runs);
      entries.erase(existing);
    }
    if (entries.size() >= kMaxEnvironments) entries.erase(entries.begin());
    entries.push_back(std::move(new_entry));
    io::write_file(file, format_entries(entries));
  } catch (const std::exception& error) {
    spdlog::info("measurements of this run are not saved for later plans: {}; VLMTRAIN_PAST_RUNS sets the file",
                 to_printable(error.what()));
  }
}

void calibrate(planner::TargetGpu& target, const PastRuns& past_runs) {
  if (!past_runs.context_bytes) return;
  target.context_bytes =
      target.is_context_measured ? std::max(target.context_bytes, *past_runs.context_bytes) : *past_runs.context_bytes;
  target.is_context_measured = true;
}

void calibrate(planner::Plan& plan, const PastRuns& past_runs) {
  if (!past_runs.step_time_ratio) return;
  scale_step_time(plan.best_estimate, *past_runs.step_time_ratio);
  for (auto& estimate : plan.alternatives) scale_step_time(estimate, *past_runs.step_time_ratio);
  if (!plan.average_step) return;
  plan.average_step->step_seconds *= *past_runs.step_time_ratio;
  plan.average_step->tokens_per_second /= *past_runs.step_time_ratio;
  plan.average_step->samples_per_second /= *past_runs.step_time_ratio;
}

void calibrate(std::vector<planner::SavingsRow>& rows, const PastRuns& past_runs) {
  if (!past_runs.step_time_ratio) return;
  for (auto& row : rows) {
    scale_step_time(row.single_sample_estimate, *past_runs.step_time_ratio);
    if (row.best_estimate) scale_step_time(*row.best_estimate, *past_runs.step_time_ratio);
  }
}

}  // namespace vlmtrain::train

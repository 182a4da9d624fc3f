#include <fmt/ranges.h>

#include <cstdlib>

#include "app/doctor/examination.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/planner/virtual_gpu.h"

namespace vlmtrain::app {

namespace {

/// A CUDA context and the workspaces of libraries take about 1 GB.
constexpr int64_t kMinFreeGpuBytes = 1'000'000'000;

/// Environment variable that makes every kernel launch synchronous.
constexpr const char* kLaunchBlockingEnvVar = "CUDA_LAUNCH_BLOCKING";

void check_gpu_environment(Section& section, const DoctorContext& context) {
  auto& facts = section.facts["environment"];
  facts = context.ignored_env_settings;
  for (const char* const name : {"CUDA_VISIBLE_DEVICES", kLaunchBlockingEnvVar}) {
    if (const char* const value = std::getenv(name)) facts.push_back(fmt::format("{}={}", name, value));
  }
  if (!context.ignored_env_settings.empty()) {
    section.warn(fmt::format(
        "{} in the environment: runs ignore it, because plans do not account for it; unset it, or set the "
        "configuration keys instead ({}, {})",
        fmt::join(context.ignored_env_settings, ", "), keys::memory::kExpandableSegments, keys::memory::kLimitGb));
  }
  if (const char* const value = std::getenv(kLaunchBlockingEnvVar);
      value != nullptr && std::string_view(value) == "1") {
    section.warn(fmt::format("{}=1 in the environment: every kernel launch is synchronous, which is slow; unset it",
                             kLaunchBlockingEnvVar));
  }
}

/// The examination of one visible GPU.
class GpuExamination {
 public:
  GpuExamination(int index, const memory::VisibleGpu& gpu)
      : gpu_index_(index), gpu_(gpu), memory_info_(memory::query_gpu_memory(index)) {}

  nlohmann::ordered_json make_facts() const {
    return {{"index", gpu_index_},
            {"name", gpu_.name},
            {"compute_capability", format_compute_capability()},
            {"mig", is_mig()},
            {"has_code", memory::has_kernel_code(gpu_.architecture)},
            {"total_bytes", memory_info_.total_bytes},
            {"free_bytes", memory_info_.free_bytes},
            {"error", memory_info_.error}};
  }

  /// Returns the value of the fact "case" (docs/how-to/check-a-machine.md).
  std::string describe_usability() const {
    if (!memory::has_kernel_code(gpu_.architecture)) return "no code";
    if (is_memory_full()) return "no memory";
    return is_mig() ? "MIG" : "usable";
  }

  /// Adds one finding, with `failure_severity` if the GPU cannot be used.
  void add_finding(Section& section, Severity failure_severity) const {
    if (!memory::has_kernel_code(gpu_.architecture)) {
      return section.add(failure_severity,
                         fmt::format("GPU {}: {}", gpu_index_, memory::explain_missing_kernel_code(gpu_)));
    }
    const std::string free_memory_text = fmt::format("{:.1f} of {:.1f} GB free", to_gigabytes(memory_info_.free_bytes),
                                                     to_gigabytes(memory_info_.total_bytes));
    if (is_memory_full()) {
      return section.add(failure_severity,
                         fmt::format("{}: {}, because other processes use its memory (nvidia-smi lists them): wait for "
                                     "them, or select another GPU with CUDA_VISIBLE_DEVICES",
                                     describe_gpu(), free_memory_text));
    }
    if (memory_info_.error != 0) {
      return section.warn(
          fmt::format("{}: the driver does not report its memory (error {}); check nvidia-smi and dmesg",
                      describe_gpu(), memory_info_.error));
    }
    constexpr double kMaxOtherProcessFraction = 0.1;  // of the GPU's memory; not tuned
    const auto used_bytes = static_cast<double>(memory_info_.total_bytes - memory_info_.free_bytes);
    if (used_bytes > kMaxOtherProcessFraction * static_cast<double>(memory_info_.total_bytes)) {
      return section.warn(fmt::format("{}, {}: other processes use much of its memory; a run plans with the rest",
                                      describe_gpu(), free_memory_text));
    }
    section.ok(fmt::format("{}, {}", describe_gpu(), free_memory_text));
  }

 private:
  bool is_mig() const { return gpu_.name.find(" MIG ") != std::string::npos; }
  bool is_memory_full() const {
    if (memory_info_.error != 0) return memory_info_.error == memory::kCudaErrorOutOfMemory;
    return memory_info_.free_bytes < kMinFreeGpuBytes;
  }
  std::string format_compute_capability() const {
    return fmt::format("{}.{}", gpu_.architecture / 10, gpu_.architecture % 10);
  }
  std::string describe_gpu() const {
    return fmt::format("GPU {}: {}, compute capability {}{}", gpu_index_, gpu_.name, format_compute_capability(),
                       is_mig() ? ", a MIG partition" : "");
  }

  int gpu_index_;
  memory::VisibleGpu gpu_;
  memory::GpuMemoryInfo memory_info_;
};

/// Only an unusable selected GPU is a failure; the other GPUs are not used.
void examine_gpus(Section& section, const DoctorContext& context, const std::vector<memory::VisibleGpu>& gpus) {
  const int selected_gpu_index = memory::parse_cuda_index(context.device).value_or(0);
  for (int index = 0; index < std::ssize(gpus); ++index) {
    const GpuExamination gpu_examination(index, gpus[static_cast<size_t>(index)]);
    section.facts["gpus"].push_back(gpu_examination.make_facts());
    const bool is_selected = index == selected_gpu_index && context.device != "cpu";
    gpu_examination.add_finding(section, is_selected ? Severity::kFail : Severity::kWarn);
    if (index == selected_gpu_index) section.facts["case"] = gpu_examination.describe_usability();
  }
  if (selected_gpu_index >= std::ssize(gpus)) {
    section.fail(fmt::format("--device {}: {}; choose a lower number, or check nvidia-smi -L and CUDA_VISIBLE_DEVICES",
                             context.device, memory::describe_usable_gpus(std::ssize(gpus))));
  }
  if (context.device != "cpu") section.facts["device"] = fmt::format("cuda:{}", selected_gpu_index);
}

/// Adds a finding with the reason for which no GPU is usable. It fails if --device requests a GPU,
/// or with --device auto if the machine has a driver that does not work: a run would not silently
/// use the CPU then.
void report_missing_gpu(Section& section, const DoctorContext& context, const memory::DriverProbeResult& driver) {
  const bool is_driver_absent = driver.state != memory::DriverState::kUnusable && driver.reason.empty();
  const std::string reason = is_driver_absent ? "no NVIDIA driver is installed (no libcuda.so.1)" : driver.reason;
  const bool rejects_cpu_fallback = driver.state == memory::DriverState::kUnusable && context.device == "auto";
  if (context.device.starts_with("cuda") || rejects_cpu_fallback) {
    return section.fail(fmt::format("{}; to train on the CPU, set --device cpu", reason));
  }
  const std::string text = context.device == "auto" ? reason + ": training runs on the CPU" : reason;
  section.add(is_driver_absent ? Severity::kOk : Severity::kWarn, text);
}

}  // namespace

Section examine_driver(const DoctorContext& context) {
  const ExaminationSettings settings{.name = "driver",
                                     .activity = "querying the driver",
                                     .suggestion = "check nvidia-smi and dmesg; to train on the CPU, set --device cpu",
                                     .failure_severity = context.device == "cpu" ? Severity::kWarn : Severity::kFail};
  return examine_in_subprocess(settings, [&](Section& section) {
    section.facts = {{"case", "not asked"}, {"device", "cpu"}, {"gpus", nlohmann::ordered_json::array()}};
    if (context.is_virtual_gpu()) {
      section.facts["device"] = context.device;
      section.ok("a virtual GPU needs no driver");
      return check_gpu_environment(section, context);
    }
    planner::check_no_stub_libraries();
    const auto driver = memory::probe_driver();
    section.facts["case"] = driver.name;
    section.facts["reason"] = driver.reason;
    section.facts["module_version"] = memory::read_kernel_module_version();
    if (driver.state == memory::DriverState::kUsable) {
      examine_gpus(section, context, driver.gpus);
    } else {
      report_missing_gpu(section, context, driver);
    }
    check_gpu_environment(section, context);
  });
}

}  // namespace vlmtrain::app

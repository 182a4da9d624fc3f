#include "vlmtrain/memory/driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstddef>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

namespace vlmtrain::memory {

namespace {

/// Access to the driver library's functions by name. The library stays loaded.
class DriverLibrary {
 public:
  explicit DriverLibrary(void* library) : library_(library) {}

  /// Result of call_function() if the library lacks the function.
  static constexpr int kMissingFunction = -1;

  /// Calls a function and returns its CUresult. The arguments' types must be as in cuda.h.
  template <class... Arguments>
  int call_function(const char* name, Arguments... arguments) const {
    auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library_, name));
    return function == nullptr ? kMissingFunction : function(arguments...);
  }

 private:
  void* library_;
};

constexpr int kMinCudaVersion = 13000;  // CUDA 13.0 in the encoding of cuDriverGetVersion

// CUDA_ERROR_NO_DEVICE and CUDA_ERROR_INVALID_DEVICE (cuda.h).
constexpr int kCudaErrorNoDevice = 100;
constexpr int kCudaErrorInvalidDevice = 101;

/// An error of cuInit: its CUresult, the reason for messages, and DriverProbeResult::name.
struct InitFailure {
  int code;
  const char* reason;
  const char* name = "fails";
};

constexpr std::array kInitFailures{
    InitFailure{2, "the GPU or the host has no free memory; check nvidia-smi", "no memory"},
    InitFailure{34,
                "libcuda.so.1 is the CUDA toolkit's stub, not a driver; remove the folder \"stubs\" from "
                "LD_LIBRARY_PATH"},
    InitFailure{46, "another process uses the GPU exclusively (nvidia-smi -q -d COMPUTE shows its compute mode)"},
    InitFailure{304, "the operating system denies access to the GPU's device files; check ls -l /dev/nvidia*",
                "no permission"},
    InitFailure{800, "access is not permitted; in SLURM request a GPU with --gres=gpu:1", "no permission"},
    InitFailure{802, "the machine's GPUs are not ready; start nvidia-fabricmanager, or wait until it has started"},
    InitFailure{803, "the driver's library and kernel module have different versions; restart the machine"},
    InitFailure{804, "the compatibility libraries do not support this GPU; remove cuda-compat from LD_LIBRARY_PATH"},
    InitFailure{805,
                "the MPS server does not answer; start nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY"},
    InitFailure{999, "the kernel module does not answer; try nvidia-smi, and sudo nvidia-modprobe -u"},
};

/// Returns whether a file of /dev belongs to one GPU (nvidia0, nvidia1, …), unlike nvidiactl.
bool is_gpu_file(const std::string& name) {
  constexpr std::string_view kPrefix = "nvidia";
  return name.starts_with(kPrefix) && name.size() > kPrefix.size() &&
         std::all_of(name.begin() + kPrefix.size(), name.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
}

std::vector<std::filesystem::path> list_folder_entries(const std::filesystem::path& folder) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  std::filesystem::directory_iterator entry(folder, error);
  for (; !error && entry != std::filesystem::directory_iterator(); entry.increment(error)) paths.push_back(*entry);
  std::ranges::sort(paths);
  return paths;
}

bool machine_has_gpus(const DriverPaths& paths) {
  const auto files = list_folder_entries(paths.device_folder);
  return !list_folder_entries(paths.proc_folder / "gpus").empty() ||
         std::ranges::any_of(files, [](const auto& path) { return is_gpu_file(path.filename().string()); });
}

struct GpuProblem {
  std::string name;
  std::string reason;
};

/// Returns why a GPU of this machine is not visible.
GpuProblem diagnose_invisible_gpu(const DriverPaths& paths) {
  bool has_gpu_file = false;
  for (const auto& path : list_folder_entries(paths.device_folder)) {
    const std::string name = path.filename().string();
    if (!is_gpu_file(name) && name != "nvidiactl" && name != "nvidia-uvm") continue;
    has_gpu_file |= is_gpu_file(name);
    if (access(path.c_str(), R_OK | W_OK) != 0) {
      return {"no permission",
              fmt::format("permission denied for {}; join the group that owns it, or in SLURM request a GPU with "
                          "--gres=gpu:1",
                          path.string())};
    }
  }
  if (!has_gpu_file) {
    return {"no device files",
            fmt::format("this machine has a GPU, but {} has no device file for it; start the container with --nv "
                        "(Apptainer) or --gpus all (Docker), or in SLURM request a GPU with --gres=gpu:1",
                        paths.device_folder.string())};
  }
  return {"not granted",
          "this machine has a GPU, but this process may not use it; in SLURM or Kubernetes request one (--gres=gpu:1, "
          "nvidia.com/gpu: 1)"};
}

DriverProbeResult make_absent_driver_result(std::string name, std::string reason) {
  return {.state = DriverState::kAbsent, .name = std::move(name), .reason = std::move(reason), .gpus = {}};
}

DriverProbeResult make_unusable_driver_result(std::string name, std::string reason) {
  return {.state = DriverState::kUnusable, .name = std::move(name), .reason = std::move(reason), .gpus = {}};
}

DriverProbeResult make_no_device_result(const DriverPaths& paths, int code) {
  if (!machine_has_gpus(paths)) {
    return make_absent_driver_result("no card", "the driver's library is installed, but the machine has no GPU");
  }
  if (const char* const visible = std::getenv("CUDA_VISIBLE_DEVICES"); visible != nullptr) {
    const std::string_view text = visible;
    if (text.empty() || text.starts_with("-1")) {
      return {.state = DriverState::kHidden,
              .name = "hidden",
              .reason = fmt::format("CUDA_VISIBLE_DEVICES={} hides every GPU", text),
              .gpus = {}};
    }
    return make_unusable_driver_result(
        "names no card",
        fmt::format("CUDA_VISIBLE_DEVICES={} lists no GPU that this process may use; nvidia-smi -L lists the "
                    "machine's GPUs",
                    text));
  }
  auto [name, reason] = diagnose_invisible_gpu(paths);
  return make_unusable_driver_result(std::move(name),
                                     fmt::format("no GPU is visible (cuInit: error {}): {}", code, reason));
}

DriverProbeResult make_init_failure_result(int code) {
  const auto* const init_failure = std::ranges::find(kInitFailures, code, &InitFailure::code);
  const bool is_known = init_failure != kInitFailures.end();
  return make_unusable_driver_result(is_known ? init_failure->name : "fails",
                                     fmt::format("the driver cannot be used (cuInit: error {}): {}", code,
                                                 is_known ? init_failure->reason : "check nvidia-smi"));
}

std::string describe_old_driver(int version, const DriverPaths& paths) {
  const std::string module_version = read_kernel_module_version(paths);
  return fmt::format(
      "the NVIDIA driver{} is too old: it supports CUDA {}.{}, but this program requires CUDA 13, driver {} or newer; "
      "update the driver (data-center GPUs can use the package cuda-compat-13-0 instead)",
      module_version.empty() ? "" : " " + module_version, version / 1000, version % 1000 / 10, kMinDriverVersion);
}

std::optional<VisibleGpu> describe_gpu(const DriverLibrary& driver, int index) {
  constexpr int kCapabilityMajorAttribute = 75;  // CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR and …MINOR
  constexpr int kCapabilityMinorAttribute = 76;
  int device = 0;
  int major = 0;
  int minor = 0;
  std::array<char, 256> name{};
  if (driver.call_function("cuDeviceGet", &device, index) != 0 ||
      driver.call_function("cuDeviceGetName", name.data(), static_cast<int>(name.size() - 1), device) != 0 ||
      driver.call_function("cuDeviceGetAttribute", &major, kCapabilityMajorAttribute, device) != 0 ||
      driver.call_function("cuDeviceGetAttribute", &minor, kCapabilityMinorAttribute, device) != 0) {
    return std::nullopt;
  }
  return VisibleGpu{.name = name.data(), .architecture = 10 * major + minor};
}

DriverProbeResult make_missing_library_result(const DriverPaths& paths, const std::string& reason) {
  // A missing library means no driver. Any other failure, such as a library for another
  // architecture, is an error to report.
  const bool is_library_missing = reason.starts_with(paths.library.string() + ": cannot open shared object file");
  if (!is_library_missing)
    return make_unusable_driver_result("broken library",
                                       fmt::format("the driver's library cannot be loaded: {}", reason));
  const std::string module = read_kernel_module_version(paths);
  if (module.empty()) return {};
  return make_absent_driver_result(
      "no library",
      fmt::format("the machine has an NVIDIA driver ({}), but its library libcuda.so.1 was not found; start a "
                  "container with --nv (Apptainer) or --gpus all (Docker)",
                  module));
}

}  // namespace

std::string read_kernel_module_version(const DriverPaths& paths) {
  std::ifstream file(paths.proc_folder / "version");
  // Example: NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue …
  for (std::string word; file >> word;) {
    const bool is_number = std::ranges::all_of(word, [](unsigned char c) { return std::isdigit(c) != 0 || c == '.'; });
    if (is_number && word.find('.') != std::string::npos) return word;
  }
  return "";
}

bool has_kernel_code(int architecture) {
  // The architectures of LibTorch's wheel for CUDA 13. KernelCodeOnGpuTest compares them with the
  // library's.
  constexpr std::array kCompiledArchitectures{75, 80, 86, 90, 100, 120};
  return std::ranges::any_of(kCompiledArchitectures, [&](int compiled) {
    return compiled / 10 == architecture / 10 && compiled <= architecture;
  });
}

std::string explain_missing_kernel_code(const VisibleGpu& gpu) {
  return fmt::format(
      "LibTorch for CUDA 13 has no code for {} (compute capability {}.{}), only for 7.5 (Turing: T4, RTX 20) to 9.0, "
      "10 and 12; use another GPU",
      gpu.name, gpu.architecture / 10, gpu.architecture % 10);
}

std::string describe_usable_gpus(int64_t count) {
  if (count == 0) return "no GPU is usable";
  return count == 1 ? "only 1 GPU is usable" : fmt::format("only {} GPUs are usable", count);
}

DriverProbeResult probe_driver(const DriverPaths& paths) {
  void* const library = dlopen(paths.library.c_str(), RTLD_NOW);
  if (library == nullptr) {
    const char* const reason = dlerror();
    return make_missing_library_result(paths, reason != nullptr ? reason : "unknown reason");
  }
  const DriverLibrary driver(library);
  // Check the version first, so that an old driver is reported as too old even if cuInit fails.
  int driver_version = 0;
  if (driver.call_function("cuDriverGetVersion", &driver_version) == 0 && driver_version > 0 &&
      driver_version < kMinCudaVersion && machine_has_gpus(paths)) {
    return make_unusable_driver_result("too old", describe_old_driver(driver_version, paths));
  }
  const int error = driver.call_function("cuInit", 0U);
  if (error == DriverLibrary::kMissingFunction)
    return make_unusable_driver_result("broken library",
                                       "libcuda.so.1 has no function cuInit, so it is not the driver's");
  if (error == kCudaErrorNoDevice || error == kCudaErrorInvalidDevice) return make_no_device_result(paths, error);
  if (error != 0) return make_init_failure_result(error);
  if (driver_version < kMinCudaVersion)
    return make_unusable_driver_result("too old", describe_old_driver(driver_version, paths));
  int count = 0;
  if (driver.call_function("cuDeviceGetCount", &count) != 0 || count == 0)
    return make_no_device_result(paths, kCudaErrorNoDevice);
  DriverProbeResult probe{.state = DriverState::kUsable, .name = "usable", .reason = {}, .gpus = {}};
  for (int index = 0; index < count; ++index) {
    const auto gpu = describe_gpu(driver, index);
    if (!gpu)
      return make_unusable_driver_result("fails",
                                         fmt::format("the driver cannot describe GPU {}; check nvidia-smi", index));
    probe.gpus.push_back(*gpu);
  }
  return probe;
}

namespace {

/// A primary context that is current on this thread.
class PrimaryContext {
 public:
  PrimaryContext(const DriverLibrary& driver, int device) : driver_(driver), device_(device) {
    void* context = nullptr;
    error_ = driver_.call_function("cuDevicePrimaryCtxRetain", &context, device_);
    if (error_ != 0) return;
    is_context_retained_ = true;
    error_ = driver_.call_function("cuCtxPushCurrent_v2", context);
  }
  ~PrimaryContext() {
    void* context = nullptr;
    if (error_ == 0) driver_.call_function("cuCtxPopCurrent_v2", &context);
    if (is_context_retained_) driver_.call_function("cuDevicePrimaryCtxRelease_v2", device_);
  }
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  int error() const { return error_; }

 private:
  const DriverLibrary& driver_;
  int device_;
  int error_ = 0;
  bool is_context_retained_ = false;
};

}  // namespace

GpuMemoryInfo query_gpu_memory(int index, const DriverPaths& paths) {
  GpuMemoryInfo info;
  void* const library = dlopen(paths.library.c_str(), RTLD_NOW);
  if (library == nullptr) return {.error = DriverLibrary::kMissingFunction};
  const DriverLibrary driver(library);
  int device = 0;
  size_t total = 0;
  info.error = driver.call_function("cuInit", 0U);
  if (info.error == 0) info.error = driver.call_function("cuDeviceGet", &device, index);
  if (info.error == 0) info.error = driver.call_function("cuDeviceTotalMem_v2", &total, device);
  if (info.error != 0) return info;
  info.total_bytes = static_cast<int64_t>(total);
  const PrimaryContext context(driver, device);
  size_t free = 0;
  info.error = context.error();
  if (info.error == 0) info.error = driver.call_function("cuMemGetInfo_v2", &free, &total);
  if (info.error == 0) info.free_bytes = static_cast<int64_t>(free);
  return info;
}

}  // namespace vlmtrain::memory

#include "vlmtrain/planner/virtual_gpu.h"

#include <sys/mman.h>

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/memory/libtorch_env.h"
#include "vlmtrain/vgpu/interface.h"

namespace vlmtrain::planner {

namespace {

/// Environment variable of processes that run on a virtual GPU on purpose: after
/// restart_on_virtual_gpu(), and dry-run processes.
constexpr const char* kVirtualGpuVariable = "VLMTRAIN_VIRTUAL_GPU";

/// The stub libraries in preload order. The driver's libraries (libcuda, libnvidia-ml) are
/// preloaded too: libraries load them by name, and would otherwise find a physical driver in
/// LD_LIBRARY_PATH or the default path first.
constexpr std::array kStubLibraries{"libcuda.so.1", "libcudart.so.13", "libcublasLt.so.13", "libcublas.so.13",
                                    "libnvidia-ml.so.1"};
/// The stub libraries load it from their own folder.
constexpr const char* kCoreLibrary = "libvlmtrain_vgpu.so";

/// Returns the first file of the stub libraries that does not exist in `folder`; nullopt if all
/// exist.
std::optional<std::string> find_missing_library(const std::filesystem::path& folder) {
  std::vector<std::string> files(kStubLibraries.begin(), kStubLibraries.end());
  files.emplace_back(kCoreLibrary);
  const auto missing_file =
      std::ranges::find_if(files, [&](const auto& file) { return !std::filesystem::exists(folder / file); });
  return missing_file == files.end() ? std::nullopt : std::optional{*missing_file};
}

/// Returns the folder of the stub libraries: next to the program in a build, or in lib/ of an
/// installation. Throws UserError (kFailed) if there is none.
std::filesystem::path find_stub_library_folder() {
  const auto program_folder = get_program_folder();
  const std::array candidate_folders{program_folder / "vgpu", program_folder.parent_path() / "vgpu",
                                     program_folder.parent_path() / "lib" / "vlmtrain" / "vgpu"};
  for (const auto& folder : candidate_folders) {
    if (!find_missing_library(folder)) return folder;
  }
  const auto* const existing_folder =
      std::ranges::find_if(candidate_folders, [](const auto& folder) { return std::filesystem::is_directory(folder); });
  const auto& stub_library_folder =
      existing_folder == candidate_folders.end() ? candidate_folders.front() : *existing_folder;
  throw run_error(
      "the stub CUDA libraries are missing: no {} in {} (nor in {}); build them with the program (cmake --build "
      "--preset release), or copy the folder vgpu next to it",
      find_missing_library(stub_library_folder).value_or(kCoreLibrary), stub_library_folder.string(),
      candidate_folders.back().string());
}

/// Returns whether a preloaded library belongs to CUDA, such as a driver, a profiler, or a library
/// that shares a GPU among containers. These libraries would act on a GPU that this process does
/// not use.
bool is_cuda_library(const std::string& library) {
  // Without a slash, the loader searches several folders, so that only the name can be checked.
  std::string text = library;
  if (library.find('/') != std::string::npos) {
    std::ifstream file(library, std::ios::binary);
    text.append(std::istreambuf_iterator<char>(file), {});
  }
  return std::ranges::any_of(std::array{"libcuda", "libnvidia", "cuInit", "cuGetProcAddress", "nvmlInit"},
                             [&](const char* word) { return text.find(word) != std::string::npos; });
}

/// Returns whether the folder's path has a space, which separates entries of LD_PRELOAD. The
/// libraries are then found by name through LD_LIBRARY_PATH. Throws UserError (kFailed) for a colon
/// or semicolon, which separate entries of LD_LIBRARY_PATH.
bool needs_ld_library_path(const std::filesystem::path& folder) {
  if (folder.string().find_first_of(":;") != std::string::npos) {
    throw run_error(
        "{}: dry runs cannot load libraries from a folder with a colon or semicolon in its name; move the program",
        folder.string());
  }
  return folder.string().find(' ') != std::string::npos;
}

/// Returns the value of LD_PRELOAD: the user's libraries except for those of CUDA, then the stub
/// libraries. The user's come first, since a sanitizer's runtime must be the first library.
std::string make_ld_preload_value(const std::filesystem::path& folder) {
  std::vector<std::string> preload_libraries;
  const char* const previous_ld_preload = std::getenv("LD_PRELOAD");
  std::string word;
  for (const char character : std::string(previous_ld_preload != nullptr ? previous_ld_preload : "") + ":") {
    if (character != ':' && character != ' ') {
      word += character;
      continue;
    }
    const bool is_stub = std::filesystem::path(word).parent_path() == folder;
    if (!word.empty() && !is_stub && !is_cuda_library(word)) preload_libraries.push_back(word);
    word.clear();
  }
  for (const char* const name : kStubLibraries)
    preload_libraries.push_back(needs_ld_library_path(folder) ? name : (folder / name).string());
  return fmt::format("{}", fmt::join(preload_libraries, ":"));
}

}  // namespace

EnvironmentVariables make_preload_environment() {
  const auto folder = find_stub_library_folder();
  EnvironmentVariables variables{{"LD_PRELOAD", make_ld_preload_value(folder)}, {kVirtualGpuVariable, "1"}};
  if (needs_ld_library_path(folder)) {
    const char* const previous_ld_library_path = std::getenv("LD_LIBRARY_PATH");
    variables.emplace_back("LD_LIBRARY_PATH", previous_ld_library_path != nullptr
                                                  ? fmt::format("{}:{}", folder.string(), previous_ld_library_path)
                                                  : folder.string());
  }
  return variables;
}

EnvironmentVariables make_gpu_environment(const VirtualGpu& gpu) {
  return {
      {"VLMTRAIN_VGPU_NAME", gpu.gpu},
      {"VLMTRAIN_VGPU_BYTES", gpu.memory_bytes ? std::to_string(*gpu.memory_bytes) : ""},
      {"VLMTRAIN_VGPU_REPORTED_BYTES", gpu.reported_bytes ? std::to_string(*gpu.reported_bytes) : ""},
      {"VLMTRAIN_VGPU_USED_BYTES", std::to_string(gpu.initial_used_bytes)},
      {"VLMTRAIN_VGPU_MULTIPROCESSORS", gpu.num_multiprocessors > 0 ? std::to_string(gpu.num_multiprocessors) : ""}};
}

bool is_passed_to_dry_runs(std::string_view variable) {
  // Settings of LibTorch, the CUDA libraries, the driver and its tools do not apply to a virtual
  // GPU.
  constexpr std::array kExcludedPrefixes{"PYTORCH_", "TORCH_", "CUDA_", "CUBLAS", "CUDNN_",        "NCCL_",
                                         "NVIDIA_",  "NVBIT_", "NSYS_", "NVLOG_", "VLMTRAIN_VGPU_"};
  return !memory::is_libtorch_env_setting(variable) && variable != "LD_AUDIT" &&
         variable != memory::kReservedLimitVariable &&
         std::ranges::none_of(kExcludedPrefixes, [&](const char* prefix) { return variable.starts_with(prefix); });
}

void check_address_space() {
  // vgpu/core/device_memory.cpp reserves 16 TiB and 4 GiB. The rest is an allowance for the CUDA
  // libraries. Not measured.
  constexpr size_t kRequiredAddressSpaceBytes = (size_t{16} << 40) + (size_t{16} << 30);
  void* const address_space =
      mmap(nullptr, kRequiredAddressSpaceBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address_space != MAP_FAILED) {
    munmap(address_space, kRequiredAddressSpaceBytes);
    return;
  }
  throw run_error(
      "a virtual GPU reserves 18 TB of address space (no memory), which exceeds this process's limit ({}); raise it "
      "(ulimit -v unlimited); SLURM's --mem limits memory without it",
      std::strerror(errno));
}

bool is_on_virtual_gpu() {
  return vgpu::find_virtual_gpu_interface() != nullptr;
}

void restart_on_virtual_gpu(const VirtualGpu& gpu) {
  check_address_space();
  memory::ignore_libtorch_env_settings();
  for (const auto& variables : {make_preload_environment(), make_gpu_environment(gpu)}) {
    for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), /*overwrite=*/1);
  }
  restart_program();
  throw run_error("cannot restart this program on a virtual GPU: {}", std::strerror(errno));
}

void check_no_stub_libraries() {
  if (is_on_virtual_gpu() && std::getenv(kVirtualGpuVariable) == nullptr) {
    throw usage_error(
        "the stub CUDA libraries are preloaded, so this process has no real GPU; remove them from LD_PRELOAD, or "
        "select a virtual GPU with --device virtual:{}",
        vgpu::find_virtual_gpu_interface()->gpu_name());
  }
}

}  // namespace vlmtrain::planner

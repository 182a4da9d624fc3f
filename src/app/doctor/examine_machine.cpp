#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "app/doctor/examination.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/memory/libtorch.h"

namespace vlmtrain::app {

namespace {

/// Environment variables that select CPU kernels or the number of threads.
constexpr const char* kCpuEnvironmentVariables[] = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
                                                    "OMP_NUM_THREADS", "MKL_NUM_THREADS"};

/// Returns the value of an environment variable, or "" if it is not set.
std::string get_environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

void add_cpu_facts(Section& section, const memory::CpuInfo& cpu_info) {
  section.facts = {{"model", cpu_info.model},
                   {"machine_cores", cpu_info.num_machine_cores},
                   {"usable_cores", cpu_info.num_usable_cores},
                   {"quota_cores", nullptr},
                   {"startable_threads", nullptr},
                   {"environment", nlohmann::ordered_json::object()}};
  if (cpu_info.cpu_quota_cores) section.facts["quota_cores"] = *cpu_info.cpu_quota_cores;
  if (cpu_info.num_startable_threads) section.facts["startable_threads"] = *cpu_info.num_startable_threads;
  for (const char* const name : kCpuEnvironmentVariables) {
    if (const auto value = get_environment_variable(name); !value.empty()) section.facts["environment"][name] = value;
  }
}

void add_cpu_facts(Section& section, const memory::CpuKernelInfo& kernels) {
  section.facts["threads"] = kernels.num_threads;
  section.facts["aten"] = kernels.aten_isa;
  section.facts["onednn"] = {{"version", kernels.onednn_version}, {"isa", kernels.onednn_isa.name}};
  section.facts["bf16"] = kernels.onednn_isa.bf16_matmul;
}

/// Reports environment variables that limit the processor.
void check_cpu_environment(Section& section, const memory::CpuInfo& cpu_info, const memory::CpuKernelInfo& kernels) {
  const std::string aten_capability = get_environment_variable("ATEN_CPU_CAPABILITY");
  if (!aten_capability.empty()) {
    section.warn(fmt::format("ATEN_CPU_CAPABILITY={} in the environment: ATen uses its kernels for {}; unset it",
                             aten_capability, kernels.aten_isa));
  }
  for (const char* const name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const std::string max_isa = get_environment_variable(name);
    if (max_isa.empty()) continue;
    const bool disables_bf16 = kernels.onednn_isa.bf16_matmul == "emulated" && cpu_info.has_bf16();
    section.warn(fmt::format("{}={} in the environment: oneDNN uses {}{}; unset it", name, max_isa,
                             kernels.onednn_isa.name,
                             disables_bf16 ? ", and bf16 is emulated although this processor supports it" : ""));
  }
  const auto num_threads = static_cast<int64_t>(kernels.num_threads);
  if (const std::string omp_num_threads = get_environment_variable("OMP_NUM_THREADS");
      !omp_num_threads.empty() && num_threads != cpu_info.num_usable_cores) {
    section.warn(fmt::format(
        "OMP_NUM_THREADS={} in the environment: {} for {}; unset it, or set it to the number of cores", omp_num_threads,
        pluralize(num_threads, "thread"), pluralize(cpu_info.num_usable_cores, "usable core")));
  }
  if (cpu_info.cpu_quota_cores && static_cast<double>(num_threads) > std::ceil(*cpu_info.cpu_quota_cores)) {
    section.warn(
        fmt::format("the control group limits this process to {:.3g} cores, but it starts {}, which is slow; set "
                    "OMP_NUM_THREADS={:.0f}",
                    *cpu_info.cpu_quota_cores, pluralize(num_threads, "thread"), std::ceil(*cpu_info.cpu_quota_cores)));
  }
  // Ranks, loader threads and libraries start about this many threads in a small run. Not measured,
  // nor is the factor of 4 for runs with more threads.
  constexpr int64_t kMinStartableThreads = 64;
  if (cpu_info.num_startable_threads &&
      *cpu_info.num_startable_threads < std::max(kMinStartableThreads, 4 * num_threads)) {
    section.warn(
        fmt::format("the control group allows {} (pids.max), but a run with {} needs more; raise the limit, such as "
                    "Docker's --pids-limit, or lower {} and OMP_NUM_THREADS",
                    pluralize(*cpu_info.num_startable_threads, "more thread"), pluralize(num_threads, "thread"),
                    keys::data::kNumWorkers));
  }
}

}  // namespace

Section examine_cpu() {
  return examine_in_subprocess(
      {.name = "processor", .activity = "checking the processor", .failure_severity = Severity::kWarn},
      [](Section& section) {
        const auto cpu_info = memory::read_cpu_info();
        add_cpu_facts(section, cpu_info);
        const auto kernels = memory::get_cpu_kernel_info(cpu_info);
        add_cpu_facts(section, kernels);
        section.ok(fmt::format("{}, {} of {} usable; ATen's kernels {}, bf16 {}",
                               cpu_info.model.empty() ? "unknown processor" : cpu_info.model, cpu_info.num_usable_cores,
                               pluralize(cpu_info.num_machine_cores, "core"), kernels.aten_isa,
                               kernels.onednn_isa.bf16_matmul));
        check_cpu_environment(section, cpu_info, kernels);
      });
}

Section examine_host_memory() {
  // Too little for LibTorch, a small model and its optimizer. Not measured.
  constexpr int64_t kLowMemoryBytes = 2'000'000'000;
  return examine_in_subprocess(
      {.name = "memory", .activity = "checking the host's memory", .failure_severity = Severity::kWarn},
      [](Section& section) {
        const int64_t machine_memory_bytes = memory::get_machine_memory_bytes();
        const int64_t limit_bytes = memory::get_host_limit_bytes();
        const auto available_memory = memory::get_available_host_memory();
        section.facts = {{"machine_bytes", machine_memory_bytes},
                         {"limit_bytes", limit_bytes},
                         {"available_bytes", available_memory.bytes},
                         {"bound", available_memory.limit_source}};
        const auto text = fmt::format("{:.1f} GB, of which {:.1f} are available to this process ({})",
                                      to_gigabytes(machine_memory_bytes), to_gigabytes(available_memory.bytes),
                                      available_memory.limit_source);
        if (available_memory.bytes >= kLowMemoryBytes) return section.ok(text);
        section.warn(text + "; this may be too little for training: free some memory, or request more (SLURM's --mem)");
      });
}

Section examine_libraries(const DoctorContext& context) {
  return examine_in_subprocess(
      {.name = "libtorch", .activity = "checking LibTorch's libraries", .failure_severity = Severity::kWarn},
      [&](Section& section) {
        const auto libtorch = memory::get_libtorch_info();
        section.facts = {
            {"compiled_for", libtorch.compiled_version},      {"loaded", libtorch.loaded_version},
            {"cpu_library", libtorch.cpu_library.string()},   {"core_library", libtorch.c10_library.string()},
            {"cuda_library", libtorch.cuda_library.string()}, {"found_by", memory::to_string(libtorch.source)}};
        const std::string location = fmt::format("{}, found by {}", libtorch.cpu_library.parent_path().string(),
                                                 memory::to_string(libtorch.source));
        if (!libtorch.matches_compiled_version()) {
          section.fail(
              fmt::format("LibTorch {} is loaded from {}, but this program is compiled for {}; remove that folder from "
                          "LD_LIBRARY_PATH and LD_PRELOAD, or install the other version there",
                          libtorch.loaded_version, location, libtorch.compiled_version));
        } else {
          section.ok(fmt::format("LibTorch {} in {}{}", libtorch.compiled_version, location,
                                 libtorch.cuda_library.empty() ? "" : "; its CUDA library is next to it"));
        }
        if (libtorch.cpu_library.parent_path() != libtorch.c10_library.parent_path()) {
          section.warn(fmt::format(
              "libc10.so is from {}, another folder than that of libtorch_cpu.so; remove one of the two from "
              "LD_LIBRARY_PATH and LD_PRELOAD",
              libtorch.c10_library.parent_path().string()));
        }
        if (!libtorch.cuda_library.empty()) return;
        const bool is_gpu_requested = context.device.starts_with("cuda") || context.is_virtual_gpu();
        section.add(
            is_gpu_requested ? Severity::kFail : Severity::kWarn,
            fmt::format(
                "libtorch_cuda.so is missing next to libtorch_cpu.so, so GPUs and planning are unavailable; install "
                "LibTorch with CUDA (pip install --force-reinstall torch=={}, or scripts/setup.sh for a local build)",
                libtorch.compiled_version));
      });
}

namespace {

/// Less than one checkpoint of a small model. Not measured.
constexpr int64_t kLowDiskBytes = 2'000'000'000;

/// Adds a finding on whether files can be created, locked and renamed in `folder`, and its free
/// space. `purpose` is a word for messages, such as "output.dir".
void examine_folder(Section& section, const std::string& purpose, const std::filesystem::path& folder,
                    Severity failure_severity) {
  const io::FolderProbeResult probe = io::probe_folder(folder);
  section.facts[purpose] = {
      {"requested", folder.string()},   {"folder", probe.folder.string()},
      {"free_bytes", probe.free_bytes}, {"writable", probe.write_error.empty()},
      {"failure", probe.write_error},   {"locks", probe.write_error.empty() && probe.lock_error.empty()},
      {"seconds", probe.seconds}};
  const std::string folder_label = fmt::format("{} {}", purpose, probe.folder.string());
  if (!probe.write_error.empty()) {
    return section.add(failure_severity,
                       fmt::format("{}: not writable ({}); change its permissions, or choose another folder",
                                   folder_label, probe.write_error));
  }
  const std::string free_disk_text = fmt::format("{:.1f} GB free", to_gigabytes(probe.free_bytes));
  if (!probe.lock_error.empty()) {
    return section.warn(
        fmt::format("{}: {}; file locks do not work ({}), so do not start two runs in it at the same time",
                    folder_label, free_disk_text, probe.lock_error));
  }
  const bool is_disk_space_low = probe.free_bytes >= 0 && probe.free_bytes < kLowDiskBytes;
  section.add(is_disk_space_low ? Severity::kWarn : Severity::kOk,
              fmt::format("{}: {}, a file was written, locked and renamed{}", folder_label, free_disk_text,
                          is_disk_space_low ? "; this may be too little for checkpoints" : ""));
}

std::filesystem::path find_temporary_folder() {
  const char* const folder = std::getenv("TMPDIR");
  return folder != nullptr && *folder != '\0' ? folder : "/tmp";
}

}  // namespace

Section examine_disk(const DoctorContext& context) {
  const bool has_output_dir = !context.output_dir.empty();
  const std::filesystem::path folder = has_output_dir ? context.output_dir : ".", temporary = find_temporary_folder();
  const std::string activity = fmt::format("writing to {} and {}", folder.string(), temporary.string());
  return examine_in_subprocess({.name = "disk", .activity = activity}, [&](Section& section) {
    examine_folder(section, has_output_dir ? std::string(keys::output::kDir) : "present folder", folder,
                   has_output_dir ? Severity::kFail : Severity::kWarn);
    examine_folder(section, "temporary folder", temporary, Severity::kWarn);
  });
}

}  // namespace vlmtrain::app

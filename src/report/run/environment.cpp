#include "vlmtrain/report/environment.h"

#include <sys/utsname.h>

#include <c10/core/Device.h>
#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "report/build_commit.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/cpu_info.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/report/json_lines.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {

namespace {

/// Returns the content of a file; empty if it does not exist. Reads until the end, since files in
/// /proc and /sys report a size of 0.
std::string read_content(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

GpuDescription describe_gpu(at::Device device) {
  const auto device_properties = memory::get_device_properties(device);
  return {.name = device_properties.name,
          .architecture = device_properties.architecture,
          .total_bytes = device_properties.total_bytes,
          .driver = memory::read_kernel_module_version()};
}

std::vector<std::string> get_command_line() {
  const std::string content = read_content("/proc/self/cmdline");
  std::istringstream text(content);
  std::vector<std::string> arguments;
  for (std::string word; std::getline(text, word, '\0');) arguments.push_back(word);
  return arguments;
}

std::string get_environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

nlohmann::ordered_json gpu_to_json(const GpuDescription& gpu) {
  return {
      {"name", gpu.name}, {"architecture", gpu.architecture}, {"total_bytes", gpu.total_bytes}, {"driver", gpu.driver}};
}

}  // namespace

std::string Environment::get_program_commit() {
  return kBuildCommit;
}

Environment Environment::collect(at::Device device) {
  utsname kernel_info{};
  uname(&kernel_info);
  const int64_t memory_bytes = memory::get_machine_memory_bytes();
  const int64_t limit_bytes = memory::get_host_limit_bytes();
  const memory::CpuInfo processor = memory::read_cpu_info();
  Environment environment{.host = kernel_info.nodename,
                          .os_kernel = std::string(kernel_info.sysname) + " " + kernel_info.release,
                          .cpu_model = processor.model,
                          .num_cpu_cores = processor.num_usable_cores,
                          .memory_bytes = memory_bytes,
                          .memory_limit_bytes = limit_bytes < memory_bytes ? std::optional{limit_bytes} : std::nullopt,
                          .gpu = {},
                          .libtorch_version = TORCH_VERSION,
                          .vlmtrain_version = VLMTRAIN_VERSION,
                          .commit = kBuildCommit,
                          .command = get_command_line(),
                          .start_time = get_unix_seconds(),
                          .slurm_job_id = get_environment_variable("SLURM_JOB_ID"),
                          .disabled_kernels = {}};
  for (const auto kernel : kernels::get_disabled_kernels())
    environment.disabled_kernels.emplace_back(kernels::to_string(kernel));
  if (!device.is_cpu()) environment.gpu = describe_gpu(device);
  return environment;
}

std::string Environment::to_json() const {
  nlohmann::ordered_json json{{"host", host},
                              {"kernel", os_kernel},
                              {"cpu", cpu_model},
                              {"cpu_cores", num_cpu_cores},
                              {"memory_bytes", memory_bytes},
                              {"memory_limit_bytes", optional_to_json(memory_limit_bytes)},
                              {"gpu", gpu ? gpu_to_json(*gpu) : nlohmann::ordered_json()},
                              {"libtorch", libtorch_version},
                              {"vlmtrain", vlmtrain_version},
                              {"commit", commit},
                              {"command", command},
                              {"start_time", start_time},
                              {"slurm_job_id", slurm_job_id},
                              {"disabled_kernels", disabled_kernels}};
  io::add_field_aliases(json, {{"disabled_kernels", "left_out_kernels"}});
  return io::to_json_string(json, 2) + "\n";
}

}  // namespace vlmtrain::report

#include "vlmtrain/report/environment.h"

#include <sys/utsname.h>

#include <torch/headeronly/version.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "report/build_commit.h"
#include "report/json_line.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/driver.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/memory/processor.h"
#include "vlmtrain/report/event.h"

namespace vlmtrain::report {

namespace {

/// Empty where there is no such file; /proc and /sys have no sizes to trust.
std::string content_of(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

GpuDescription gpu_of(at::Device device) {
  const auto card = memory::describe(device);
  return {.name = card.name,
          .architecture = card.architecture,
          .total_bytes = card.total_bytes,
          .driver = memory::module_version()};
}

std::vector<std::string> command_line() {
  std::istringstream text(content_of("/proc/self/cmdline"));
  std::vector<std::string> words;
  for (std::string word; std::getline(text, word, '\0');) words.push_back(word);
  return words;
}

std::string environment_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

nlohmann::ordered_json gpu_json(const GpuDescription& gpu) {
  return {
      {"name", gpu.name}, {"architecture", gpu.architecture}, {"total_bytes", gpu.total_bytes}, {"driver", gpu.driver}};
}

}  // namespace

std::string Environment::commit_of_program() {
  return kBuildCommit;
}

Environment Environment::collect(at::Device device) {
  utsname system{};
  uname(&system);
  const int64_t memory_bytes = memory::machine_bytes();
  const int64_t limit_bytes = memory::host_limit_bytes();
  const memory::Processor processor = memory::processor();
  Environment environment{.host = system.nodename,
                          .kernel = std::string(system.sysname) + " " + system.release,
                          .cpu = processor.model,
                          .cpu_cores = processor.usable_cores,
                          .memory_bytes = memory_bytes,
                          .memory_limit_bytes = limit_bytes < memory_bytes ? std::optional{limit_bytes} : std::nullopt,
                          .gpu = {},
                          .libtorch = TORCH_VERSION,
                          .vlmtrain = VLMTRAIN_VERSION,
                          .commit = kBuildCommit,
                          .command = command_line(),
                          .start_time = unix_seconds(),
                          .slurm_job_id = environment_variable("SLURM_JOB_ID"),
                          .left_out_kernels = {}};
  for (const auto kernel : kernels::left_out_kernels())
    environment.left_out_kernels.emplace_back(kernels::name_of(kernel));
  if (!device.is_cpu()) environment.gpu = gpu_of(device);
  return environment;
}

std::string Environment::to_json() const {
  const nlohmann::ordered_json json{{"host", host},
                                    {"kernel", kernel},
                                    {"cpu", cpu},
                                    {"cpu_cores", cpu_cores},
                                    {"memory_bytes", memory_bytes},
                                    {"memory_limit_bytes", or_null(memory_limit_bytes)},
                                    {"gpu", gpu ? gpu_json(*gpu) : nlohmann::ordered_json()},
                                    {"libtorch", libtorch},
                                    {"vlmtrain", vlmtrain},
                                    {"commit", commit},
                                    {"command", command},
                                    {"start_time", start_time},
                                    {"slurm_job_id", slurm_job_id},
                                    {"left_out_kernels", left_out_kernels}};
  return io::json_text(json, 2) + "\n";
}

}  // namespace vlmtrain::report

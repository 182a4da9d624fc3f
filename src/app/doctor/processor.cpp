#include "vlmtrain/memory/processor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "app/doctor/examinations.h"
#include "vlmtrain/base/apart.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::app {

namespace {

constexpr double kKernelTimeoutSeconds = 20;
constexpr const char* kVariables[] = {"ATEN_CPU_CAPABILITY", "ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA",
                                      "OMP_NUM_THREADS", "MKL_NUM_THREADS"};

std::string get_variable(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr ? value : "";
}

memory::CpuKernels probe_cpu_kernels() {
  const SubprocessResult result = run_in_subprocess(memory::print_cpu_kernels, kKernelTimeoutSeconds);
  // What was told before it broke off counts all the same.
  auto kernels = memory::parse_cpu_kernels(result.stdout_text);
  if (!result.succeeded()) throw std::runtime_error("a product of 16 bits " + result.describe_exit());
  return kernels;
}

void add_facts(Section& section, const memory::CpuInfo& processor) {
  section.facts = {{"model", processor.model},
                   {"machine_cores", processor.machine_cores},
                   {"usable_cores", processor.usable_cores},
                   {"quota_cores", nullptr},
                   {"startable_threads", nullptr},
                   {"environment", nlohmann::ordered_json::object()}};
  if (processor.quota_cores) section.facts["quota_cores"] = *processor.quota_cores;
  if (processor.startable_threads) section.facts["startable_threads"] = *processor.startable_threads;
  for (const char* const name : kVariables) {
    if (const auto value = get_variable(name); !value.empty()) section.facts["environment"][name] = value;
  }
}

void add_facts(Section& section, const memory::CpuKernels& kernels) {
  section.facts["threads"] = kernels.threads;
  section.facts["aten"] = kernels.aten;
  section.facts["onednn"] = {
      {"version", kernels.onednn_version}, {"isa", kernels.onednn_isa}, {"bf16_product", kernels.bf16_product}};
  section.facts["bf16"] = memory::to_string(kernels.bf16);
}

/// What the environment makes of the processor.
void check_environment(Section& section, const memory::CpuInfo& processor, const memory::CpuKernels& kernels) {
  const std::string aten = get_variable("ATEN_CPU_CAPABILITY");
  if (!aten.empty()) {
    section.warn(fmt::format("ATEN_CPU_CAPABILITY={} in the environment: ATen takes its kernels for {}; unset it", aten,
                             kernels.aten));
  }
  for (const char* const name : {"ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA"}) {
    const std::string isa = get_variable(name);
    if (isa.empty()) continue;
    const bool disables_bf16 = kernels.bf16 == memory::Bf16MatmulSupport::kEmulated && processor.has_bf16();
    section.warn(fmt::format("{}={} in the environment: oneDNN uses {}{}; unset it", name, isa,
                             kernels.onednn_isa.empty() ? "what that allows" : kernels.onednn_isa,
                             disables_bf16 ? ", and bf16 is emulated, which this processor has units for" : ""));
  }
  const auto threads = static_cast<int64_t>(kernels.threads);
  if (const std::string num_threads = get_variable("OMP_NUM_THREADS");
      !num_threads.empty() && threads != processor.usable_cores) {
    section.warn(fmt::format("OMP_NUM_THREADS={} in the environment: {} for {}; unset it, or give as many as cores",
                             num_threads, pluralize(threads, "thread"),
                             pluralize(processor.usable_cores, "usable core")));
  }
  if (processor.quota_cores && static_cast<double>(threads) > std::ceil(*processor.quota_cores)) {
    section.warn(fmt::format(
        "the control group gives this process the time of {:.3g} cores, and {} share it, which is slow; set "
        "OMP_NUM_THREADS={:.0f}",
        *processor.quota_cores, pluralize(threads, "thread"), std::ceil(*processor.quota_cores)));
  }
  // Ranks, loader threads and libraries start so many without doing much.
  constexpr int64_t kMinStartableThreads = 64;
  if (processor.startable_threads && *processor.startable_threads < std::max(kMinStartableThreads, 4 * threads)) {
    section.warn(fmt::format(
        "the control group lets {} start (pids.max), and a run on {} takes more; raise the limit, such as Docker's "
        "--pids-limit, or lower data.num_workers and OMP_NUM_THREADS",
        pluralize(*processor.startable_threads, "more thread"), pluralize(threads, "thread")));
  }
}

}  // namespace

Section examine_processor() {
  return examine_in_subprocess(
      {.name = "processor", .activity = "looking at the processor", .on_failure = Severity::kWarn},
      [](Section& section) {
        const auto processor = memory::read_cpu_info();
        add_facts(section, processor);
        const auto kernels = probe_cpu_kernels();
        add_facts(section, kernels);
        section.ok(fmt::format("{}, {} of {} usable; ATen's kernels {}, bf16 {}",
                               processor.model.empty() ? "a processor without a name" : processor.model,
                               processor.usable_cores, pluralize(processor.machine_cores, "core"), kernels.aten,
                               memory::to_string(kernels.bf16)));
        check_environment(section, processor, kernels);
      });
}

}  // namespace vlmtrain::app

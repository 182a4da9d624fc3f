#include <c10/core/Device.h>

#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include "app/commands/commands.h"
#include "app/process/device.h"
#include "app/process/process_control.h"
#include "app/settings/process_setup.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/virtual_gpu.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/config.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/saved_settings.h"
#include "vlmtrain/train/trainer.h"

namespace vlmtrain::app {

namespace {

/// Returns the configuration that is saved with the run, as YAML. training.resume=changed applies
/// once, so it is saved as auto: a later resume must not accept further changes silently.
std::string to_resolved_yaml(train::Config& config, const OptionTable& options) {
  const train::ResumePolicy policy = config.resume_policy;
  if (policy == train::ResumePolicy::kChanged) config.resume_policy = train::ResumePolicy::kAuto;
  std::string resolved_yaml = options.to_yaml();
  config.resume_policy = policy;
  return resolved_yaml;
}

/// Checks in the launcher, so that an error is printed once and not by every rank. Throws UserError
/// (kUsage).
void check_launch_arguments(const TrainArguments& arguments) {
  std::error_code ignored_error;
  if (!std::filesystem::is_regular_file(arguments.config, ignored_error) &&
      std::filesystem::exists(arguments.config, ignored_error)) {
    throw usage_error("--config {}: must be a regular file with --nproc-per-node, because each rank reads it",
                      arguments.config);
  }
  train::Config config;
  train::declare_options(config).read(arguments.config, arguments.overrides);
  train::fetch_hub_models(config, hub::ModelFiles::kWithWeights);  // once, so that the ranks find them in the cache
  train::fetch_hub_data(config);
  train::check_config(config);
  train::check_world_size(config, arguments.nproc_per_node);
  static_cast<void>(parse_virtual_gpu(arguments.device));  // throws for an unknown GPU
}

/// Throws UserError (kUsage) if variables of another launcher are set, even leftover ones: this
/// process would take itself for one of its ranks. `count` is the value of --nproc-per-node.
void check_no_other_launcher(int64_t count) {
  const char* const launcher = std::getenv(kLauncherEnvVar);
  if (launcher != nullptr && std::string_view(launcher) == kLocalLauncherName) return;
  for (const char* variable : {"WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"}) {
    const char* const value = std::getenv(variable);
    const bool is_slurm_variable = std::string_view(variable).starts_with("SLURM");
    if (is_slurm_variable && std::getenv("SLURM_STEP_ID") == nullptr) continue;  // an allocation, but no srun
    if (value == nullptr || parse_int_after_prefix("", value).value_or(0) <= 1) continue;
    const bool is_torchrun_variable = std::string_view(variable) == "WORLD_SIZE";
    throw usage_error(
        "--nproc-per-node {}: {}={} is set, as {} sets it for each rank that it starts; omit --nproc-per-node if it "
        "has started this process, or unset {} if it is left over",
        count, variable, make_excerpt(value),
        is_torchrun_variable ? "torchrun"
        : is_slurm_variable  ? "srun"
                             : "mpirun",
        is_torchrun_variable ? "WORLD_SIZE and RANK" : variable);
  }
}

/// Throws UserError (kUsage) for an unknown device. open_device() would not name virtual:NAME,
/// which only this command accepts.
void check_train_device(const std::string& device) {
  if (device == "auto" || device == "cpu" || memory::parse_cuda_index(device) || parse_virtual_gpu(device)) return;
  throw usage_error("--device {}: unknown device; must be auto, cpu, cuda, cuda:N or virtual:NAME", device);
}

}  // namespace

ExitCode train(const TrainArguments& arguments) {
  init_logging(arguments.quiet);
  if (arguments.nproc_per_node > 1) check_no_other_launcher(arguments.nproc_per_node);
  const auto launch = distributed::read_launch_info();
  if (launch) {
    exit_when_launcher_exits();
  } else if (arguments.nproc_per_node > 1) {
    check_launch_arguments(arguments);
    return launch_ranks(arguments.nproc_per_node);
  }
  const bool is_main_process = !launch || launch->rank == 0;
  // Opening a virtual GPU may execute the program again. The configuration is read after that,
  // since it may be a pipe, which can be read only once.
  if (const auto virtual_gpu = parse_virtual_gpu(arguments.device); virtual_gpu && !planner::is_on_virtual_gpu())
    planner::restart_on_virtual_gpu(*virtual_gpu);
  check_train_device(arguments.device);
  const at::Device device = open_device(launch ? choose_rank_device(arguments.device, *launch) : arguments.device);
  if (device.is_cpu()) restart_with_openmp_wait_policy();
  train::Config config;
  OptionTable options = train::declare_options(config);
  options.read(arguments.config, arguments.overrides);
  train::check_output_files(config, arguments.config);
  train::resolve_run_chat_template_date(config.data, config.output.dir);
  const bool needs_weights = !planner::is_on_virtual_gpu();
  train::fetch_hub_models(config, needs_weights ? hub::ModelFiles::kWithWeights : hub::ModelFiles::kConfig);
  train::fetch_hub_data(config);
  const auto summary =
      train::train(config, to_resolved_yaml(config, options), device, arguments.quiet || !is_main_process, launch);
  if (arguments.json && is_main_process) {
    fmt::print("{}\n", summary.to_json());
  } else if (!arguments.quiet) {
    spdlog::info("{} done; checkpoint: {}", pluralize(summary.steps, "step"),
                 summary.newest_checkpoint      ? summary.newest_checkpoint->string()
                 : planner::is_on_virtual_gpu() ? "none, because the GPU is virtual"
                                                : "none");
  }
  return summary.was_stopped_by_signal ? ExitCode::kStopped : ExitCode::kSuccess;
}

}  // namespace vlmtrain::app

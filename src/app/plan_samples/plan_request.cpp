#include "app/plan_samples/plan_request.h"

#include <c10/core/Device.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <utility>

#include "app/plan_samples/synthetic_samples.h"
#include "app/process/device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/data/data_set.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/host_memory.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/checkpoint_info.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/checks.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/hub_references.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/sample_limits.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kDefaultModelPreset = "llava-1.5-7b";

/// Returns the last argument key=value for a key, or for any key of a section; nothing if there is
/// no such argument. Does not read the file of --config.
std::optional<std::string> find_override(const PlanArguments& arguments, std::string_view key_or_section) {
  std::optional<std::string> last_override;
  for (const auto* overrides : {&arguments.flag_overrides, &arguments.overrides}) {
    for (const auto& text : *overrides) {
      const std::string_view key = std::string_view(text).substr(0, text.find('='));
      const bool is_in_section = key.starts_with(key_or_section) && key.substr(key_or_section.size()).starts_with('.');
      if (key == key_or_section || is_in_section) last_override = text;
    }
  }
  return last_override;
}

/// Throws UserError (kUsage) if --finetune contradicts the configuration keys of LoRA.
void check_finetune_flag(const PlanArguments& arguments, const train::Config& config) {
  const auto reject_key = [](const std::string& key, const std::string& flag, const std::string& advice) {
    throw usage_error("--finetune {} contradicts {}: {}", flag, key, advice);
  };
  const std::string no_lora = fmt::format("{}=0", keys::lora::kRank);
  if (arguments.finetuning_type == "full") {
    for (const std::string_view key : {std::string_view("lora"), keys::model::kAdapter}) {
      const auto text = find_override(arguments, key);
      if (!text || *text == no_lora || *text == fmt::format("{}=", keys::model::kAdapter)) continue;
      reject_key(*text, "full", "the key enables LoRA; omit one of the two");
    }
    if (config.model.quantization != nn::Quantization::kNone) {
      reject_key(fmt::format("{}={}", keys::model::kQuantization, nn::to_string(config.model.quantization)), "full",
                 fmt::format("trained weights cannot be quantized; use --finetune lora, or {}=none",
                             keys::model::kQuantization));
    }
  }
  if (arguments.finetuning_type == "lora" && find_override(arguments, keys::lora::kRank) == no_lora) {
    reject_key(
        no_lora, "lora",
        fmt::format("rank 0 disables LoRA; set a rank such as {}=16, or use --finetune full", keys::lora::kRank));
  }
}

}  // namespace

planner::TargetGpu resolve_target_gpu(const PlanArguments& arguments) {
  if (!arguments.gpu.empty() && arguments.gpu_gigabytes) {
    throw usage_error("--gpu and --gpu-gb: give one of them; --gpu {} implies the size, and {} lowers it",
                      arguments.gpu, keys::memory::kLimitGb);
  }
  if (!arguments.gpu.empty()) return planner::find_target_gpu(arguments.gpu);
  if (arguments.gpu_gigabytes) return planner::make_target_gpu(*arguments.gpu_gigabytes);  // an unnamed GPU
  constexpr const char* kAdvice = "name the GPU to plan for, with --gpu-gb 24 or --gpu rtx4090";
  std::optional<at::Device> device;
  try {
    device = open_device("auto");
  } catch (const UserError& error) {
    throw UserError(error.code(), fmt::format("{}; or {}", error.what(), kAdvice));
  }
  if (device->is_cpu()) throw usage_error("this machine has no GPU; {}", kAdvice);
  return planner::make_target_gpu(memory::get_device_properties(*device));
}

train::Config make_plan_config(const PlanArguments& arguments) {
  train::Config config;
  train::declare_options(config).read(arguments.config, arguments.collect_overrides());
  check_finetune_flag(arguments, config);
  if (std::isnan(arguments.host_memory_gigabytes.value_or(0)))
    throw usage_error("--host-memory-gb nan: must be greater than 0");
  if (std::isnan(arguments.network_gbit)) throw usage_error("--network-gbit nan: must be greater than 0");
  if (arguments.world_size % arguments.num_nodes != 0) {
    throw usage_error("--world-size {}: all {} nodes must have the same number of ranks; choose a multiple of --nodes",
                      arguments.world_size, arguments.num_nodes);
  }
  train::check_sharding(config, arguments.world_size);
  train::check_master_weights(config.training);
  train::check_global_batch_tokens(config, arguments.world_size);
  const bool uses_default_model = config.model.path.empty();
  if (uses_default_model) config.model.path = kDefaultModelPreset;
  const bool has_no_adapter = config.lora.rank == 0 && config.model.adapter.empty();
  const bool uses_lora = arguments.finetuning_type.empty()
                             ? uses_default_model && !find_override(arguments, keys::lora::kRank)
                             : arguments.finetuning_type == "lora";
  if (uses_lora && has_no_adapter) config.lora.rank = kDefaultLoraRank;
  if (arguments.finetuning_type == "full") {
    config.lora = {};
    config.model.adapter.clear();
  }
  return config;
}

namespace {

planner::FlagSyntax make_flag_syntax(const PlanArguments& arguments) {
  planner::FlagSyntax syntax;
  // Suggestions name another GPU in the same way as the user: by name, or else by size.
  syntax.selects_gpu_by_size = arguments.gpu.empty();
  syntax.gpu_flag_format = syntax.selects_gpu_by_size ? "--gpu-gb {}" : "--gpu {}";
  if (arguments.finetuning_type == "full") syntax.lora_argument_format = "--finetune lora";
  return syntax;
}

/// Returns the host memory that the ranks of a machine may page-lock; nullopt if it is not known.
std::optional<int64_t> find_host_memory_bytes(const PlanArguments& arguments) {
  constexpr double kBytesPerGigabyte = 1e9;
  if (arguments.host_memory_gigabytes) return std::llround(*arguments.host_memory_gigabytes * kBytesPerGigabyte);
  const bool is_for_this_machine = arguments.gpu.empty() && !arguments.gpu_gigabytes;
  return is_for_this_machine ? std::optional{memory::get_available_host_memory().bytes} : std::nullopt;
}

/// Sets the fields of a request that depend on neither the samples nor the configuration. `model`
/// is model.path as the user wrote it, not the temporary folder of a preset.
void fill_common_request_fields(planner::PlanRequest& request, const PlanArguments& arguments,
                                const std::string& model) {
  request.workload.num_nodes = arguments.num_nodes;
  request.job.num_nodes = arguments.num_nodes;
  request.workload.network_gbit = arguments.network_gbit;
  request.host_memory_bytes = find_host_memory_bytes(arguments);
  request.model = model;
  request.flags = make_flag_syntax(arguments);
  request.with_timeline = !arguments.timeline.empty();
}

/// Returns the request for the samples of data.train.
planner::PlanRequest make_dataset_request(const PlanArguments& arguments, const train::Config& config,
                                          const planner::TargetGpu& target) {
  train::check_evaluation_options(config);
  const auto records = train::open_training_records(config);
  const auto processor = models::load_processor(
      config.model.folder(), train::make_processor_settings(config.data, config.model.adapter_folder()));
  auto planning_inputs = train::make_planning_inputs(*records, *processor, config, arguments.world_size);
  auto request = train::make_plan_request(config, train::make_training_job(config, planning_inputs.tasks), target,
                                          std::move(planning_inputs.workload));
  request.sample_limits = train::make_sample_limits(records, config, request.workload);
  request.evaluation = train::make_run_evaluation_request(config, *processor);
  return request;
}

/// Returns the request for the samples that flags describe.
planner::PlanRequest make_synthetic_request(const PlanArguments& arguments, const train::Config& config,
                                            const planner::TargetGpu& target) {
  SyntheticSamples samples = make_synthetic_samples(arguments, config);
  for (const auto& remark : samples.remarks) spdlog::warn("{}", remark);
  auto request =
      train::make_plan_request(config, train::make_training_job(config), target, std::move(samples.workload));
  request.evaluation =
      train::make_run_evaluation_request(config, request.workload.worst_batches.front().shapes.front());
  request.sample_limits = std::move(samples.limits);
  return request;
}

}  // namespace

PlanInput make_plan_input(const PlanArguments& arguments) {
  train::Config config = make_plan_config(arguments);
  const std::string model_name = config.model.path;
  ModelFolder model(model_name, arguments.tokenizer, config.hub.commits);
  config.model.path = model.path();
  config.model.adapter = train::fetch_model_folder(config.model.adapter, hub::ModelFiles::kAdapter, config.hub.commits);
  auto request = model.name_in_errors([&] {
    for (const auto& remark : models::list_checkpoint_warnings(config.model.path)) spdlog::warn("{}", remark);
    const planner::TargetGpu target = resolve_target_gpu(arguments);
    if (config.data.train.empty() || arguments.has_sample_flags())
      return make_synthetic_request(arguments, config, target);
    if (model.preset() != nullptr) model.preset()->check_has_tokenizer();
    return make_dataset_request(arguments, config, target);
  });
  fill_common_request_fields(request, arguments, model_name);
  return {.model = std::move(model), .request = std::move(request)};
}

}  // namespace vlmtrain::app

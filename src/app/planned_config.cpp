#include "app/planned_config.h"

#include <cmath>

#include "app/run_device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kDefaultModel = "llava-1.5-7b";

/// What was typed for a key, the last word on it; nothing if the key was not typed. A section is its keys.
std::optional<std::string> find_setting(const PlanArguments& arguments, const std::string& key_or_section) {
  std::optional<std::string> setting;
  for (const auto* settings : {&arguments.key_flags, &arguments.overrides}) {
    for (const auto& text : *settings) {
      const std::string key = text.substr(0, text.find('='));
      if (key == key_or_section || key.starts_with(key_or_section + ".")) setting = text;
    }
  }
  return setting;
}

/// --finetune says in a word what the keys of LoRA say in several; they must not say otherwise.
void check_finetune(const PlanArguments& arguments, const train::Config& config) {
  const auto refuse = [](const std::string& key, const std::string& flag, const std::string& advice) {
    throw usage_error("--finetune {} contradicts {}: {}", flag, key, advice);
  };
  if (arguments.finetune == "full") {
    for (const char* key : {"lora", "model.adapter"}) {
      const auto text = find_setting(arguments, key);
      if (!text || *text == "lora.rank=0" || *text == "model.adapter=") continue;
      refuse(*text, "full", "that is LoRA; leave one of the two out");
    }
    if (config.model.quantization != nn::Quantization::kNone) {
      refuse("model.quantization=" + nn::to_string(config.model.quantization), "full",
             "weights that are trained are not quantised; take --finetune lora, or model.quantization=none");
    }
  }
  if (arguments.finetune == "lora" && find_setting(arguments, "lora.rank") == "lora.rank=0") {
    refuse("lora.rank=0", "lora", "rank 0 is no LoRA; give a rank such as lora.rank=16, or take --finetune full");
  }
}

}  // namespace

planner::TargetGpu resolve_target_gpu(const PlanArguments& arguments) {
  if (!arguments.gpu.empty() && arguments.gpu_gigabytes) {
    throw usage_error("--gpu and --gpu-gb: give one of them; --gpu {} says its size, and memory.limit_gb lowers it",
                      arguments.gpu);
  }
  if (!arguments.gpu.empty()) return planner::find_target_gpu(arguments.gpu);
  if (arguments.gpu_gigabytes) return planner::make_target_gpu(*arguments.gpu_gigabytes);
  constexpr const char* kAdvice = "say for which one to plan, with --gpu-gb 24 or --gpu rtx4090";
  std::optional<at::Device> device;
  try {
    device = open_device("auto");
  } catch (const UserError& error) {
    throw UserError(error.code(), fmt::format("{}; or {}", error.what(), kAdvice));
  }
  if (device->is_cpu()) throw usage_error("there is no GPU in this machine; {}", kAdvice);
  return planner::make_target_gpu(memory::describe(*device));
}

train::Config make_plan_config(const PlanArguments& arguments) {
  train::Config config;
  train::declare(config).read(arguments.config, arguments.all_overrides());
  check_finetune(arguments, config);
  if (std::isnan(arguments.network_gbit)) throw usage_error("--network-gbit nan: a number above 0 is wanted");
  if (arguments.world_size % arguments.nodes != 0) {
    throw usage_error("--world-size {} on --nodes {}: each machine has as many ranks; choose a multiple of the nodes",
                      arguments.world_size, arguments.nodes);
  }
  train::check_sharding(config, arguments.world_size);
  train::check_global_batch_tokens(config, arguments.world_size);
  const bool uses_default_model = config.model.path.empty();
  if (uses_default_model) config.model.path = kDefaultModel;
  const bool has_no_adapter = config.lora.rank == 0 && config.model.adapter.empty();
  const bool uses_lora = arguments.finetune.empty() ? uses_default_model && !find_setting(arguments, "lora.rank")
                                                    : arguments.finetune == "lora";
  if (uses_lora && has_no_adapter) config.lora.rank = kDefaultLoraRank;
  if (arguments.finetune == "full") {
    config.lora = {};
    config.model.adapter.clear();
  }
  return config;
}

}  // namespace vlmtrain::app

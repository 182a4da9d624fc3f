#include "app/planned_config.h"

#include <cmath>

#include "app/run_device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kDefaultModel = "llava-1.5-7b";

/// What was typed for a key, the last word on it; nothing if the key was not typed. A section is its keys.
std::optional<std::string> typed(const PlanArguments& arguments, const std::string& key_or_section) {
  std::optional<std::string> last;
  for (const auto* list : {&arguments.key_flags, &arguments.overrides}) {
    for (const auto& text : *list) {
      const std::string key = text.substr(0, text.find('='));
      if (key == key_or_section || key.starts_with(key_or_section + ".")) last = text;
    }
  }
  return last;
}

/// --finetune says in a word what the keys of LoRA say in several; they must not say otherwise.
void check_finetune(const PlanArguments& arguments, const train::Config& config) {
  const auto refuse = [](const std::string& key, const std::string& flag, const std::string& remedy) {
    throw usage_error("--finetune {} contradicts {}: {}", flag, key, remedy);
  };
  if (arguments.finetune == "full") {
    for (const char* key : {"lora", "model.adapter"}) {
      const auto text = typed(arguments, key);
      if (!text || *text == "lora.rank=0" || *text == "model.adapter=") continue;
      refuse(*text, "full", "that is LoRA; leave one of the two out");
    }
    if (config.model.quantization != nn::Quantization::kNone) {
      refuse("model.quantization=" + nn::name_of(config.model.quantization), "full",
             "weights that are trained are not quantised; take --finetune lora, or model.quantization=none");
    }
  }
  if (arguments.finetune == "lora" && typed(arguments, "lora.rank") == "lora.rank=0") {
    refuse("lora.rank=0", "lora", "rank 0 is no LoRA; give a rank such as lora.rank=16, or take --finetune full");
  }
}

}  // namespace

planner::TargetCard card_of(const PlanArguments& arguments) {
  if (!arguments.gpu.empty() && arguments.gpu_gigabytes) {
    throw usage_error("--gpu and --gpu-gb: give one of them; --gpu {} says its size, and memory.limit_gb lowers it",
                      arguments.gpu);
  }
  if (!arguments.gpu.empty()) return planner::card_by_name(arguments.gpu);
  if (arguments.gpu_gigabytes) return planner::card_of_size(*arguments.gpu_gigabytes);
  constexpr const char* kRemedy = "say for which one to plan, with --gpu-gb 24 or --gpu rtx4090";
  std::optional<at::Device> device;
  try {
    device = open_device("auto");
  } catch (const UserError& error) {
    throw UserError(error.code(), fmt::format("{}; or {}", error.what(), kRemedy));
  }
  if (device->is_cpu()) throw usage_error("there is no GPU in this machine; {}", kRemedy);
  return planner::card_of_device(memory::describe(*device));
}

train::Config config_of(const PlanArguments& arguments) {
  train::Config config;
  train::declare(config).read(arguments.config, arguments.all_overrides());
  check_finetune(arguments, config);
  if (std::isnan(arguments.network_gbit)) throw usage_error("--network-gbit nan: a number above 0 is wanted");
  if (arguments.world_size % arguments.nodes != 0) {
    throw usage_error("--world-size {} on --nodes {}: each machine has as many ranks; choose a multiple of the nodes",
                      arguments.world_size, arguments.nodes);
  }
  train::check_sharding(config, arguments.world_size);
  train::check_steps_of_ranks(config, arguments.world_size);
  const bool default_job = config.model.path.empty();
  if (default_job) config.model.path = kDefaultModel;
  const bool no_rank = config.lora.rank == 0 && config.model.adapter.empty();
  const bool lora =
      arguments.finetune.empty() ? default_job && !typed(arguments, "lora.rank") : arguments.finetune == "lora";
  if (lora && no_rank) config.lora.rank = kDefaultLoraRank;
  if (arguments.finetune == "full") {
    config.lora = {};
    config.model.adapter.clear();
  }
  return config;
}

}  // namespace vlmtrain::app

#include "app/plan_arguments.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "app/run_device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/memory/device.h"

namespace vlmtrain::app {

namespace {

constexpr const char* kDefaultModel = "llava-1.5-7b";
constexpr int64_t kDefaultRank = 16;

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

/// A flag that is another way to write a configuration key.
void add_key_flag(CLI::App& command, PlanArguments& arguments, const char* flag, const std::string& key,
                  const std::string& description) {
  command
      .add_option_function<std::string>(
          flag, [&arguments, key](const std::string& value) { arguments.key_flags.push_back(key + "=" + value); },
          fmt::format("{} ({})", description, key))
      ->take_last();
}

}  // namespace

void declare_plan_arguments(CLI::App& command, PlanArguments& arguments) {
  command.add_option("--gpu-gb", arguments.gpu_gigabytes, "size of the card in gigabytes, as shops count them")
      ->take_last();
  command.add_option("--gpu", arguments.gpu, "or its name, such as rtx4090 or a100-40 (docs/planner.md)")->take_last();
  command.add_option("--config", arguments.config, "YAML file; the samples are those of its data.train");
  command.add_option("overrides", arguments.overrides,
                     "key=value, such as memory.recompute=none; of a key that is given twice the last counts");
  add_key_flag(command, arguments, "--model", "model.path", "checkpoint folder or name of a preset");
  add_key_flag(command, arguments, "--global-batch", "training.global_batch_size", "samples of a step");
  add_key_flag(command, arguments, "--micro-batch", "training.micro_batch_size", "samples of a pass, or auto");
  add_key_flag(command, arguments, "--precision", "training.precision", "bf16, fp16 or fp32");
  add_key_flag(command, arguments, "--optimizer-states", "training.optimizer_states", "fp32, bf16 or 8bit");
  add_key_flag(command, arguments, "--quantization", "model.quantization", "none, nf4 or int8; with LoRA");
  add_key_flag(command, arguments, "--recompute", "memory.recompute", "auto, none, all or a number of blocks");
  add_key_flag(command, arguments, "--sharding", "distributed.sharding",
               "none, optimizer, full, hybrid or auto; of several ranks");
  add_key_flag(command, arguments, "--mode", "memory.mode", "conservative, balanced or aggressive");
  add_key_flag(command, arguments, "--limit-gb", "memory.limit_gb", "most memory to take, in GB of 10⁹ bytes");
  declare_sample_arguments(command, arguments.samples);
  command
      .add_option("--finetune", arguments.finetune,
                  fmt::format("full, or lora with lora.rank (else {}); without --model lora", kDefaultRank))
      ->check(CLI::IsMember({"full", "lora"}))
      ->take_last();
  command.add_option("--tokenizer", arguments.tokenizer,
                     "tokenizer.json of a preset's model, to measure the samples of data.train with");
  command
      .add_option("--world-size", arguments.world_size,
                  "ranks that share a global batch, each with a GPU (docs/several-ranks.md)")
      ->check(CLI::Range(int64_t{1}, distributed::kMostRanks))
      ->capture_default_str();
  command.add_option("--nodes", arguments.nodes, "machines that the ranks are on, as many on each")
      ->check(CLI::Range(int64_t{1}, distributed::kMostRanks))
      ->capture_default_str();
  command
      .add_option("--network-gbit", arguments.network_gbit,
                  "what one of them sends to another, in 10⁹ bits a second, for the predicted time")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  command.add_option("--timeline", arguments.timeline, "write the memory of a step over time to this HTML file");
  command.add_flag("--compare", arguments.compare,
                   "also what 16 bits, recomputation, 8-bit states, LoRA and NF4 save, one after another");
  command.add_flag("--json", arguments.json, "print the plan as one JSON object on stdout");
}

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
  auto overrides = arguments.key_flags;
  overrides.insert(overrides.end(), arguments.overrides.begin(), arguments.overrides.end());
  train::declare(config).read(arguments.config, overrides);
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
  if (lora && no_rank) config.lora.rank = kDefaultRank;
  if (arguments.finetune == "full") {
    config.lora = {};
    config.model.adapter.clear();
  }
  return config;
}

}  // namespace vlmtrain::app

#include "app/plan_arguments.h"

#include <fmt/format.h>

#include "vlmtrain/distributed/launch.h"

namespace vlmtrain::app {

namespace {

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

std::vector<std::string> PlanArguments::all_overrides() const {
  auto overrides_and_flags = key_flags;
  overrides_and_flags.insert(overrides_and_flags.end(), overrides.begin(), overrides.end());
  return overrides_and_flags;
}

void declare(CLI::App& command, PlanArguments& arguments) {
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
  declare_sample_flags(command, arguments.samples);
  command
      .add_option("--finetune", arguments.finetune,
                  fmt::format("full, or lora with lora.rank (else {}); without --model lora", kDefaultLoraRank))
      ->check(CLI::IsMember({"full", "lora"}))
      ->take_last();
  command.add_option("--tokenizer", arguments.tokenizer,
                     "tokenizer.json of a preset's model, to measure the samples of data.train with");
  command
      .add_option("--world-size", arguments.world_size,
                  "ranks that share a global batch, each with a GPU (docs/several-ranks.md)")
      ->check(CLI::Range(int64_t{1}, distributed::kMaxRanks))
      ->capture_default_str();
  command.add_option("--nodes", arguments.nodes, "machines that the ranks are on, as many on each")
      ->check(CLI::Range(int64_t{1}, distributed::kMaxRanks))
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

}  // namespace vlmtrain::app

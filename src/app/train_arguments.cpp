#include "app/train_arguments.h"

namespace vlmtrain::app {

namespace {

constexpr int64_t kMaxLocalRanks = 1024;

}  // namespace

void declare(CLI::App& command, TrainArguments& arguments) {
  command.add_option("--config", arguments.config, "YAML file (docs/config.md)")->required();
  command.add_option("overrides", arguments.overrides, "key=value, such as training.max_steps=100");
  command
      .add_option("--device", arguments.device,
                  "auto, cpu, cuda, cuda:N, or virtual:CARD to rehearse the run on a card such as h100")
      ->capture_default_str();
  command
      .add_option("--launch", arguments.launch,
                  "train in so many processes of this machine; torchrun and srun start them without it")
      ->check(CLI::Range(int64_t{1}, kMaxLocalRanks))
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
  command.add_flag("--quiet", arguments.quiet, "no progress, warnings only");
}

}  // namespace vlmtrain::app

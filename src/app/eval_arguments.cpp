#include "app/eval_arguments.h"

#include "app/new_tokens.h"
#include "app/validators.h"

namespace vlmtrain::app {

void declare(CLI::App& command, EvalArguments& arguments) {
  command.add_option("--config", arguments.config, "YAML file; data.eval names the data")->required();
  command
      .add_option("--checkpoint", arguments.checkpoint,
                  "folder of a checkpoint, a LoRA adapter or a run (its best checkpoint, else its newest)")
      ->required()
      ->check(not_empty());
  command
      .add_option("--base", arguments.base,
                  "folder of an adapter's base checkpoint, where it is not the one that it names")
      ->check(not_empty());
  command.add_option("overrides", arguments.overrides, "key=value, such as data.eval=held_out.json");
  command.add_option("--device", arguments.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--answers", arguments.answers, "write every answer to this JSON Lines file");
  command.add_option("--max-new-tokens", arguments.max_new_tokens, "most tokens of an answer")
      ->check(CLI::Range(int64_t{1}, kMaxNewTokens))
      ->capture_default_str();
  command
      .add_option("--batch-size", arguments.batch_size,
                  "samples that are computed at once; auto: the most that fit, up to 32 on a GPU and 16 on the CPU")
      ->capture_default_str();
  command.add_option("--mask-out", arguments.mask_out,
                     "folder for each sample's picture with its masks, the true ones outlined in green: ID.png");
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

}  // namespace vlmtrain::app

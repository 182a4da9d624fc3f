#include "app/merge_arguments.h"

#include "app/validators.h"

namespace vlmtrain::app {

void declare(CLI::App& command, MergeArguments& arguments) {
  command
      .add_option("--adapter", arguments.adapter, "folder of a LoRA adapter in PEFT's layout, or of a run (its newest)")
      ->required()
      ->check(not_empty());
  command.add_option("--out", arguments.out, "new folder for the checkpoint")->required()->check(not_empty());
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

}  // namespace vlmtrain::app

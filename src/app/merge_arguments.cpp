#include "app/merge_arguments.h"

#include "app/validators.h"

namespace vlmtrain::app {

void declare(CLI::App& command, MergeArguments& arguments) {
  command
      .add_option("--adapter", arguments.adapter, "folder of a LoRA adapter in PEFT's layout, or of a run (its newest)")
      ->required()
      ->check(not_empty());
  command.add_option("--out", arguments.out, "new folder for the checkpoint")->required()->check(not_empty());
  command
      .add_option("--base", arguments.base,
                  "folder of the adapter's base checkpoint, where it is not the one that it names")
      ->check(not_empty());
  command
      .add_option("--dtype", arguments.dtype,
                  "type of all weights of the checkpoint; auto: each as the base has it; float32 keeps changes that 16 "
                  "bits round away")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

}  // namespace vlmtrain::app

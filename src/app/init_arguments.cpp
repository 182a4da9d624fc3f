#include "app/init_arguments.h"

#include <fmt/ranges.h>

#include "app/validators.h"
#include "app/weight_dtype.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::app {

void declare(CLI::App& command, InitArguments& arguments) {
  command.add_option("--preset", arguments.preset, fmt::format("one of {}", fmt::join(models::list_presets(), ", ")))
      ->required();
  command.add_option("--out", arguments.out, "new folder for the checkpoint")->required()->check(not_empty());
  command
      .add_option("--tokenizer", arguments.tokenizer,
                  "tokenizer.json, for presets and text models that come without one")
      ->check(CLI::ExistingFile);
  command
      .add_option("--text-model", arguments.text_model,
                  "folder of a LLaVA or LLaVA-Med whose weights, tokenizer and config a prs-med preset takes over; for "
                  "brain-llava also of a Llama, Mistral or Qwen2, of which the text model is taken")
      ->check(not_empty());
  command
      .add_option(
          "--mask-model", arguments.mask_model,
          "mask encoder and decoder for a prs-med preset: a .pt, .pth or .safetensors file of SAM or MobileSAM, "
          "or the folder of transformers' SamModel")
      ->check(CLI::ExistingPath);
  command
      .add_option(
          "--volume-tower", arguments.volume_tower,
          "tower for a brain-llava preset: a .pt, .pth or .safetensors file with the weights of MONAI's ViT, or "
          "the folder of one")
      ->check(CLI::ExistingPath);
  command.add_option("--tower-heads", arguments.tower_heads, "its heads [the preset's; else one for 64 features]")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  command.add_option(
      "--volume-size", arguments.volume_size,
      "the volumes that it has positions for, in voxels: XxYxZ or one number for all three [the preset's; "
      "else a cube]");
  command.add_option("--seed", arguments.seed, "seed of the weights that start at random")
      ->check(non_negative())
      ->capture_default_str();
  command.add_option("--dtype", arguments.dtype, "type of the random weights [float32]")
      ->check(CLI::IsMember(weight_dtype_names()));
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

}  // namespace vlmtrain::app

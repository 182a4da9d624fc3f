#include "app/generate_arguments.h"

#include "app/new_tokens.h"
#include "app/validators.h"

namespace vlmtrain::app {

void declare(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option("--checkpoint", arguments.checkpoint,
                  "folder of a checkpoint, a LoRA adapter or a run (its best checkpoint, else its newest)")
      ->required()
      ->check(not_empty());
  command
      .add_option("--base", arguments.base,
                  "folder of an adapter's base checkpoint, where it is not the one that it names")
      ->check(not_empty());
  command.add_option("--image", arguments.images, "image file; may be given several times")->check(CLI::ExistingFile);
  command.add_option("--video", arguments.videos, "video file or folder of frames; may be given several times")
      ->check(CLI::ExistingPath);
  command.add_option("--volume", arguments.volumes, "scan (NIfTI: .nii, .nii.gz); may be given several times")
      ->allow_extra_args(false)
      ->check(CLI::ExistingFile);
  command.add_option("--modality", arguments.modalities, "of the volumes, such as T1w: one for all, or one for each")
      ->allow_extra_args(false);
  command.add_option("--prompt", arguments.prompt,
                     "question; <image> (of volumes too) and <video> mark the places of images and videos, else they "
                     "stand first");
  command.add_option("--system", arguments.system, "system text before the question, where the chat template has one");
  command.add_option("--data", arguments.data, "file of conversations: ask the last question of a record of it")
      ->check(CLI::ExistingFile);
  command.add_option("--record", arguments.record, "the record's id, or its place from 1; the first one if not given");
  command
      .add_option("--chat-template", arguments.chat_template,
                  "auto: the checkpoint's own; else as data.chat_template (docs/chat-templates.md)")
      ->capture_default_str();
  command.add_flag(
      "--show-prompt", arguments.show_prompt,
      "print what the model reads and stop; of a record of --data as it is trained on, with what is learnt "
      "marked");
  command.add_option("--max-new-tokens", arguments.max_new_tokens, "most tokens of the answer")
      ->check(CLI::Range(int64_t{1}, kMaxNewTokens))
      ->capture_default_str();
  auto& sampling = arguments.sampling;
  command
      .add_option("--temperature", sampling.temperature,
                  "0: the most probable token each time; above: tokens are drawn, from logits divided by it")
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "draw from the k most probable tokens; 0: from all")
      ->capture_default_str();
  command.add_option("--top-p", sampling.top_p, "draw from the fewest tokens that have more than this probability")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "above 1: tokens that occurred, in the prompt too, are less likely")
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "of the draws; the same seed gives the same answer")
      ->check(non_negative())
      ->capture_default_str();
  command.add_flag("!--no-cache", arguments.use_cache,
                   "run the model over the whole sequence for each token; slow, for comparison");
  command.add_option("--device", arguments.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--precision", arguments.precision, "what the model computes in")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command.add_option("--mask-out", arguments.mask_out,
                     "folder for the masks that the answer stands for: mask_1.png, … and overlay.png");
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
  // Not "overrides", which take any key: a flag that is none of these is no key either.
  command.add_option(
      "volume_settings", arguments.volume_settings,
      "data.key=value, such as data.volume.spacing=1 or data.image_max_pixels=802816; else media are read as the "
      "checkpoint's run read them. Of --data also data.columns, data.ignore_keys and data.image_root");
}

}  // namespace vlmtrain::app

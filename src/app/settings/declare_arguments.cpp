#include "app/settings/declare_arguments.h"

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <string>

#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/distributed/launch.h"
#include "vlmtrain/models/checkpoint.h"

namespace vlmtrain::app {

namespace {

/// Longest answer: more tokens than any model has positions for.
constexpr int64_t kMaxAnswerTokens = 10'000'000;

// Limits of --nproc-per-node and inspect's --samples. Chosen without measurement.
constexpr int64_t kMaxLocalRanks = 1024;
constexpr int64_t kMaxShownSamples = 100;

/// Returns a validator that rejects an empty value, such as `--out ""` from an unset shell
/// variable.
CLI::Validator make_non_empty_check() {
  return {[](const std::string& value) { return std::string(value.empty() ? "is empty; give a value" : ""); }, ""};
}

/// Returns a validator for unsigned integers that rejects a negative number, which CLI11 would
/// convert to a huge one.
CLI::Validator make_non_negative_check() {
  return {[](const std::string& value) {
            return std::string(value.starts_with('-') ? value + ": must be an integer of at least 0" : "");
          },
          ""};
}

/// Adds the flags that describe samples. The last value of a repeated flag counts.
void declare_sample_flags(CLI::App& command, SampleFlags& arguments) {
  const auto add_flag = [&](const char* flag, auto& value, const std::string& description) {
    return command.add_option(flag, value, description)->take_last();
  };
  add_flag("--images", arguments.num_images, "number of images per sample [1; with a video 0]");
  add_flag("--image-size", arguments.image_size,
           "size of the images in pixels, WIDTHxHEIGHT or one number for both [1024x768]");
  add_flag("--masks", arguments.num_masks,
           "number of masks in a sample's answers [one per image if the model predicts masks]");
  add_flag("--image-mix", arguments.image_mix,
           "alternatively, shares of the samples with each number of images, such as 1:0.5,2:0.25,3:0.25")
      ->check(make_non_empty_check());
  add_flag("--video-frames", arguments.video_frames, "number of frames of a sample's video; all of them are used");
  add_flag("--fps", arguments.fps,
           fmt::format("frame rate of the video; if given, {} frames per second are used", keys::data::kVideoFps));
  add_flag("--video-size", arguments.video_size, "size of a video frame in pixels [--image-size]");
  add_flag("--volumes", arguments.num_volumes, "number of volumes per sample, for models that take volumes [1]");
  add_flag("--volume-size", arguments.volume_size,
           "size of the volumes in voxels, XxYxZ or one number for all three [the size in the model's config.json]");
  add_flag("--text-tokens", arguments.num_text_tokens, "tokens of question and answer per sample [256]");
  add_flag("--answer-tokens", arguments.num_answer_tokens, "label tokens among these [64]");
}

/// Adds a flag that sets the configuration key `key`, by an entry of `arguments.flag_overrides`.
void add_config_key_flag(CLI::App& command, PlanArguments& arguments, const char* flag, std::string_view key,
                         const std::string& description) {
  command
      .add_option_function<std::string>(
          flag,
          [&arguments, key](const std::string& value) {
            arguments.flag_overrides.push_back(fmt::format("{}={}", key, value));
          },
          fmt::format("{} ({})", description, key))
      ->take_last();
}

}  // namespace

void declare_arguments(CLI::App& command, TrainArguments& arguments) {
  command.add_option("--config", arguments.config, "YAML file (docs/reference/config.md)")->required();
  command.add_option("overrides", arguments.overrides,
                     fmt::format("key=value, such as {}=100", keys::training::kMaxSteps));
  command
      .add_option("--device", arguments.device,
                  "auto, cpu, cuda, cuda:N, or virtual:NAME for a dry run on a virtual GPU such as h100")
      ->capture_default_str();
  command
      .add_option("--nproc-per-node", arguments.nproc_per_node,
                  "number of ranks to start on this machine; torchrun and srun start ranks without this option")
      ->check(CLI::Range(int64_t{1}, kMaxLocalRanks))
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
  command.add_flag("--quiet", arguments.quiet, "no progress, warnings only");
}

void declare_arguments(CLI::App& command, PlanArguments& arguments) {
  command.add_option("--gpu-gb", arguments.gpu_gigabytes, "memory of the GPU in GB, as vendors state it")->take_last();
  command
      .add_option("--gpu", arguments.gpu,
                  "or the name of the GPU, such as rtx4090 or a100-40 (docs/explanation/planning.md)")
      ->take_last();
  command
      .add_option("--host-memory-gb", arguments.host_memory_gigabytes,
                  fmt::format("host memory of a machine in GB of 10⁹ bytes, for {}; default: of this machine if the "
                              "plan is for its GPU, else unlimited",
                              keys::memory::kOffload))
      ->check(CLI::Range(0.1, 1e6))
      ->take_last();
  command.add_option("--config", arguments.config,
                     fmt::format("YAML file; plans for the samples of its {}", keys::data::kTrain));
  command.add_option(
      "overrides", arguments.overrides,
      fmt::format("key=value, such as {}=none; the last value of a key applies", keys::memory::kRecompute));
  add_config_key_flag(command, arguments, "--model", keys::model::kPath,
                      "checkpoint folder, name on the Hub, or name of a preset");
  add_config_key_flag(command, arguments, "--global-batch", keys::training::kGlobalBatchSize, "samples per step");
  add_config_key_flag(command, arguments, "--micro-batch", keys::training::kMicroBatchSize,
                      "samples per micro-batch, or auto");
  add_config_key_flag(command, arguments, "--precision", keys::training::kPrecision, "bf16, fp16 or fp32");
  add_config_key_flag(command, arguments, "--optimizer", keys::training::kOptimizer, "rule that updates the weights");
  add_config_key_flag(command, arguments, "--optimizer-states", keys::training::kOptimizerStates, "fp32, bf16 or 8bit");
  add_config_key_flag(command, arguments, "--quantization", keys::model::kQuantization, "none, nf4 or int8; with LoRA");
  add_config_key_flag(command, arguments, "--recompute", keys::memory::kRecompute,
                      "auto, none, all or a number of blocks");
  add_config_key_flag(command, arguments, "--sharding", keys::distributed::kSharding,
                      "none, optimizer, full, hybrid or auto; for several ranks");
  add_config_key_flag(command, arguments, "--mode", keys::memory::kMode, "conservative, balanced or aggressive");
  add_config_key_flag(command, arguments, "--limit-gb", keys::memory::kLimitGb, "maximum memory in GB of 10⁹ bytes");
  declare_sample_flags(command, arguments.samples);
  command
      .add_option(
          "--finetune", arguments.finetuning_type,
          fmt::format("full, or lora with {} [{}]; default without --model: lora", keys::lora::kRank, kDefaultLoraRank))
      ->check(CLI::IsMember({"full", "lora"}))
      ->take_last();
  command.add_option("--tokenizer", arguments.tokenizer,
                     fmt::format("tokenizer.json for a preset, to tokenize the samples of {}", keys::data::kTrain));
  command
      .add_option("--world-size", arguments.world_size,
                  "number of ranks that share a global batch, each with a GPU (docs/how-to/several-gpus.md)")
      ->check(CLI::Range(int64_t{1}, distributed::kMaxWorldSize))
      ->capture_default_str();
  command.add_option("--nodes", arguments.num_nodes, "number of nodes, each with the same number of ranks")
      ->check(CLI::Range(int64_t{1}, distributed::kMaxWorldSize))
      ->capture_default_str();
  command
      .add_option("--network-gbit", arguments.network_gbit,
                  "bandwidth between two nodes in 10⁹ bits per second, for the predicted time")
      ->check(CLI::Range(0.1, 1e5))
      ->capture_default_str();
  command.add_option("--timeline", arguments.timeline, "write the memory of a step over time to this HTML file");
  command.add_flag(
      "--compare", arguments.compare,
      "also print the memory that 16-bit precision, recomputation, 8-bit states, LoRA and NF4 save, added one at "
      "a time");
  command.add_flag("--json", arguments.json, "print the plan as one JSON object on stdout");
}

void declare_arguments(CLI::App& command, InspectArguments& arguments) {
  command.add_option("--config", arguments.config, fmt::format("YAML file; {} names the data", keys::data::kTrain))
      ->required();
  command.add_option("overrides", arguments.overrides,
                     fmt::format("key=value, such as {}=4096", keys::data::kMaxLength));
  command
      .add_option("--html", arguments.html,
                  "write the full report to this HTML file, with images as the model receives them")
      ->check(make_non_empty_check());
  command.add_flag("--json", arguments.json, "print the report as one JSON object on stdout");
  command.add_flag("--decode", arguments.decode, "decode every image and video, not only their headers");
  command
      .add_option("--samples", arguments.samples,
                  "number of samples to show as they are trained on, the first in training order")
      ->check(CLI::Range(int64_t{0}, kMaxShownSamples))
      ->capture_default_str();
  command.add_option("--record", arguments.records, "also show this record, by id or position from 1; may be repeated")
      ->expected(1)
      ->take_all();
  command
      .add_option("--gpu", arguments.gpu_arguments.gpu,
                  "predict the memory of the largest samples on this GPU, as plan does")
      ->take_last();
  command.add_option("--gpu-gb", arguments.gpu_arguments.gpu_gigabytes, "or on a GPU of this size in GB")->take_last();
  command.add_option("--tokenizer", arguments.tokenizer, "tokenizer.json for a preset");
}

void declare_arguments(CLI::App& command, DoctorArguments& arguments) {
  CLI::Option* const config_option =
      command.add_option("--config", arguments.config, "YAML file of a run, whose files are checked too")
          ->check(make_non_empty_check());
  command.add_option("overrides", arguments.overrides, "key=value, with --config")->needs(config_option);
  command.add_option("--output-dir", arguments.output_dir, "folder for results, instead of the current one")
      ->check(make_non_empty_check())
      ->excludes(config_option);
  command
      .add_option("--device", arguments.device,
                  "device to train on: auto, cpu, cuda, cuda:N, or virtual:NAME such as virtual:h100")
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "print all findings as one JSON object on stdout");
}

void declare_arguments(CLI::App& command, InitArguments& arguments) {
  command.add_option("--preset", arguments.preset, fmt::format("one of {}", fmt::join(models::list_presets(), ", ")))
      ->required();
  command.add_option("--out", arguments.out, "new folder for the checkpoint")
      ->required()
      ->check(make_non_empty_check());
  command
      .add_option("--tokenizer", arguments.tokenizer,
                  "tokenizer.json, for presets and text models that come without one")
      ->check(CLI::ExistingFile);
  command
      .add_option("--text-model", arguments.text_model,
                  "folder of a LLaVA or LLaVA-Med whose weights, tokenizer and config a prs-med preset uses; for "
                  "brain-llava also of a Llama, Mistral or Qwen2, whose text model is used")
      ->check(make_non_empty_check());
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
  command
      .add_option("--tower-heads", arguments.num_tower_heads,
                  "number of attention heads of the tower [as in the preset; else one per 64 features]")
      ->check(CLI::Range(int64_t{1}, int64_t{1024}));
  command.add_option("--volume-size", arguments.volume_size,
                     "volume size in voxels that the tower has positions for: XxYxZ or one number for all three [as in "
                     "the preset; else a cube]");
  command.add_option("--seed", arguments.seed, "seed of the randomly initialized weights")
      ->check(make_non_negative_check())
      ->capture_default_str();
  command.add_option("--dtype", arguments.dtype, "data type of the random weights [float32]")
      ->check(CLI::IsMember(list_weight_dtype_names()));
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

void declare_arguments(CLI::App& command, EvalArguments& arguments) {
  command.add_option("--config", arguments.config, fmt::format("YAML file; {} names the data", keys::data::kEval))
      ->required();
  command
      .add_option("--checkpoint", arguments.checkpoint,
                  "folder of a checkpoint, a LoRA adapter or a run (its best checkpoint, else its newest)")
      ->required()
      ->check(make_non_empty_check());
  command
      .add_option("--base", arguments.base,
                  "folder of an adapter's base checkpoint, if it is not the one that adapter_config.json names")
      ->check(make_non_empty_check());
  command.add_option("overrides", arguments.overrides,
                     fmt::format("key=value, such as {}=held_out.json", keys::data::kEval));
  command.add_option("--device", arguments.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--answers,--answers-out", arguments.answers, "write every answer to this JSON Lines file");
  command.add_option("--max-new-tokens", arguments.max_new_tokens, "maximum number of tokens per answer")
      ->check(CLI::Range(int64_t{1}, kMaxAnswerTokens))
      ->capture_default_str();
  command
      .add_option("--batch-size", arguments.batch_size,
                  "samples per batch; auto: the most that fit, up to 32 on a GPU and 16 on the CPU")
      ->capture_default_str();
  command.add_option("--mask-out", arguments.mask_output_dir,
                     "folder for each sample's image with its masks, the true ones outlined in green: ID.png");
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

void declare_arguments(CLI::App& command, GenerateArguments& arguments) {
  command
      .add_option("--checkpoint", arguments.checkpoint,
                  "folder of a checkpoint, a LoRA adapter or a run (its best checkpoint, else its newest)")
      ->required()
      ->check(make_non_empty_check());
  command
      .add_option("--base", arguments.base,
                  "folder of an adapter's base checkpoint, if it is not the one that adapter_config.json names")
      ->check(make_non_empty_check());
  command.add_option("--image", arguments.images, "image file; may be given several times")->check(CLI::ExistingFile);
  command.add_option("--video", arguments.videos, "video file or folder of frames; may be given several times")
      ->check(CLI::ExistingPath);
  command.add_option("--volume", arguments.volumes, "scan (NIfTI: .nii, .nii.gz); may be given several times")
      ->allow_extra_args(false)
      ->check(CLI::ExistingFile);
  command
      .add_option("--modality", arguments.modalities,
                  "modality of the volumes, such as T1w: one for all, or one for each")
      ->allow_extra_args(false);
  command.add_option("--prompt", arguments.prompt,
                     "question; <image> (also for volumes) and <video> mark the positions of images and videos, which "
                     "otherwise come first");
  command.add_option("--system", arguments.system_prompt, "system prompt, if the chat template supports one");
  command
      .add_option("--data", arguments.data, "file of conversations; the model answers the last question of one record")
      ->check(CLI::ExistingFile);
  command.add_option("--record", arguments.record, "id of the record, or its position from 1 [the first record]");
  command
      .add_option(
          "--chat-template", arguments.chat_template,
          fmt::format("auto: the template of the checkpoint; otherwise as {} (docs/reference/chat-templates.md)",
                      keys::data::kChatTemplate))
      ->capture_default_str();
  command.add_flag(
      "--show-prompt", arguments.show_prompt,
      "print the model's input and stop; for a record of --data as it is trained on, with the label tokens marked");
  command.add_option("--max-new-tokens", arguments.max_new_tokens, "maximum number of tokens of the answer")
      ->check(CLI::Range(int64_t{1}, kMaxAnswerTokens))
      ->capture_default_str();
  auto& sampling = arguments.sampling;
  command
      .add_option("--temperature", sampling.temperature,
                  "0: greedy decoding; above 0: sample from the logits divided by the temperature")
      ->capture_default_str();
  command.add_option("--top-k", sampling.top_k, "sample from the k most probable tokens; 0: from all")
      ->capture_default_str();
  command
      .add_option("--top-p", sampling.top_p,
                  "sample from the fewest tokens that together have more than this probability")
      ->capture_default_str();
  command
      .add_option("--repetition-penalty", sampling.repetition_penalty,
                  "above 1: makes tokens that occurred before, also in the prompt, less likely")
      ->capture_default_str();
  command.add_option("--seed", sampling.seed, "seed of sampling; the same seed gives the same answer")
      ->check(make_non_negative_check())
      ->capture_default_str();
  command.add_flag_callback(
      "--no-cache", [&arguments] { arguments.use_cache = false; },
      "run the model over the whole sequence for each token, without a KV cache; slow, for comparison");
  command.add_option("--device", arguments.device, "auto, cpu, cuda or cuda:N")->capture_default_str();
  command.add_option("--precision", arguments.precision, "data type of the model's computation")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command.add_option("--mask-out", arguments.mask_output_dir,
                     "folder for the masks of the answer: mask_1.png, … and overlay.png");
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
  // The name "overrides" would make command_line.cpp suggest configuration keys for unknown flags,
  // but generate accepts only these.
  command.add_option("data_settings", arguments.data_settings,
                     fmt::format("data.key=value, such as {}=1 or {}=802816; default: the settings of the run that "
                                 "wrote the checkpoint. With --data also {}, {} and {}",
                                 keys::data::kVolumeSpacing, keys::data::kImageMaxPixels, keys::data::kColumns,
                                 keys::data::kIgnoreKeys, keys::data::kImageRoot));
}

void declare_arguments(CLI::App& command, MergeArguments& arguments) {
  command
      .add_option("--adapter", arguments.adapter,
                  "folder, or name on the Hub, of a LoRA adapter in PEFT's layout; or folder of a run (its best "
                  "checkpoint, else its newest)")
      ->required()
      ->check(make_non_empty_check());
  command.add_option("--out", arguments.out, "new folder for the checkpoint")
      ->required()
      ->check(make_non_empty_check());
  command
      .add_option("--base", arguments.base,
                  "folder of the adapter's base checkpoint, if it is not the one that adapter_config.json names")
      ->check(make_non_empty_check());
  command
      .add_option("--dtype", arguments.dtype,
                  "data type of all weights of the checkpoint; auto: as in the base, for each weight; float32 keeps "
                  "changes that 16 bits round away")
      ->check(CLI::IsMember({"auto", "float32", "bfloat16", "float16", "fp32", "bf16", "fp16"}))
      ->capture_default_str();
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

void declare_arguments(CLI::App& command, DownloadArguments& arguments) {
  command.add_option("references", arguments.references,
                     "ORG/NAME[@REVISION] of a model, or hf://datasets/ORG/NAME[@REVISION][/CONFIG][:SPLIT]");
  command.add_option("--config", arguments.config, "also what this YAML file names on the Hub");
  command.add_flag("--no-weights", arguments.no_weights, "only what `vlmtrain plan` needs of models");
  command.add_flag("--json", arguments.json, "print the result as one JSON object on stdout");
}

void declare_arguments(CLI::App& command, OptionsArguments& arguments) {
  command.add_flag("--markdown", arguments.markdown,
                   "print Markdown with types, conditions and descriptions, as in docs/reference/config.md");
}

void declare_arguments(CLI::App& command, ReportArguments& arguments) {
  command.add_option("run_dir", arguments.folder, fmt::format("folder of a run: its {}", keys::output::kDir))
      ->required();
}

}  // namespace vlmtrain::app

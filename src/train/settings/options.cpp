#include "train/settings/options.h"

namespace vlmtrain::train {

namespace {

/// Keys of other trainers that stand for nothing that can be set here.
void declare_foreign_keys(OptionTable& table) {
  table.add_foreign_keys({"min_pixels", "image_min_pixels"}, "no equivalent: the model's processor sets it");
  table.add_foreign_keys(
      {"neat_packing", "sample_packing", "group_by_length", "group_by_modality_length", "padding_free",
       "remove_unused_columns", "padding_side", "pad_to_sequence_len", "pad_to_multiple_of"},
      "nothing to set: samples are always concatenated without padding");
  table.add_foreign_keys({"image_aspect_ratio", "mm_vision_select_layer", "mm_vision_select_feature",
                          "mm_use_im_start_end", "mm_use_im_patch_token", "mm_projector_type", "vision_tower",
                          "force_image_size", "down_sample_ratio", "dynamic_image_size"},
                         "no equivalent: the checkpoint's config.json sets it");
  table.add_foreign_keys({"save_safetensors", "save_only_model"},
                         "nothing to set: checkpoints are safetensors plus the trainer state");
  table.add_foreign_keys({"logging_steps", "log_interval", "logging_strategy", "logging_first_step"},
                         "nothing to set: metrics.jsonl has a line for every step");
  table.add_foreign_keys(
      {"flash_attn", "attn_implementation", "attn_impl", "use_flash_attention", "use_flash_attention_2",
       "enable_liger_kernel", "use_liger_kernel", "torch_compile", "use_unsloth", "disable_flash_attn2", "use_triton"},
      "nothing to set: the device and the precision determine the kernels");
  table.add_foreign_keys({"trust_remote_code", "processor_type", "skip_prepare_dataset", "dataset_prepared_path",
                          "lazy_preprocess", "bias", "loftq_config", "recipe", "_target_", "stage", "do_train",
                          "use_fast_tokenizer", "hub_model_id", "push_to_hub", "use_cache"},
                         "no equivalent: remove it");
}

}  // namespace

OptionTable declare_options(Config& config) {
  OptionTable table;
  declare_options(table, config.model);
  declare_options(table, config.lora);
  data::declare_options(table, config.data);
  engine::declare_options(table, config.training);
  table.add_enum(
      keys::training::kResume, config.resume_policy,
      {{"auto", ResumePolicy::kAuto}, {"changed", ResumePolicy::kChanged}, {"never", ResumePolicy::kNever}},
      {.doc = "Handling of checkpoints in output.dir. `auto`: resume from the newest one, if any; refuse if the "
              "settings would make it a different run. `changed`: resume with the changed settings, as far as they "
              "may change (docs/resuming.md). `never`: refuse to start if a checkpoint exists.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"resume_from_checkpoint", "resume", "overwrite_output_dir", "auto_resume"},
                  .text = "training.resume: auto resumes from the newest checkpoint in output.dir, changed does so "
                          "with other settings, never fails if one exists"}}});
  table.add_enum(
      keys::training::kScheduleFrom, config.schedule_origin,
      {{"start", ScheduleOrigin::kStart}, {"change", ScheduleOrigin::kLastChange}},
      {.doc = "Start of warm-up and learning rate schedule. `start`: the run's first step; they span all its steps. "
              "`change`: the step at which `training.resume: changed` last changed learning rates, schedule, steps "
              "or data; they span the steps that remained then (docs/resuming.md).",
       .resume = ResumeRule::kIfRequested});
  declare_options(table, config.evaluation);
  planner::declare_options(table, config.memory);
  declare_options(table, config.output);
  declare_options(table, config.distributed);
  declare_foreign_keys(table);
  return table;
}

}  // namespace vlmtrain::train

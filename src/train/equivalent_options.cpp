#include "train/equivalent_options.h"

#include <algorithm>
#include <initializer_list>

namespace vlmtrain::train {

namespace {

struct EquivalentOption {
  std::initializer_list<std::string_view> keys;  // of other trainers
  std::string_view equivalent;                   // text of the hint
};

const EquivalentOption kEquivalentOptions[] = {
    {{"per_device_train_batch_size", "per_gpu_train_batch_size", "train_micro_batch_size_per_gpu", "device_batch_size",
      "batch_size", "train_batch_size", "per_device_batch_size"},
     "training.global_batch_size is the exact number of samples per step; the planner chooses "
     "training.micro_batch_size (auto)"},
    {{"gradient_accumulation_steps", "accumulate_grad_batches", "gradient_accumulation", "grad_accum_steps"},
     "training.global_batch_size / training.micro_batch_size; set the global batch size, the planner chooses the "
     "micro-batch size"},
    {{"per_device_eval_batch_size", "eval_batch_size"}, "nothing to set: vlmtrain eval chooses a batch size that fits"},
    {{"num_train_epochs", "num_epochs", "n_epochs", "max_epochs"}, "training.epochs"},
    {{"num_steps", "total_steps", "max_train_steps", "num_training_steps", "train_steps"}, "training.max_steps"},
    {{"lr", "base_lr"}, "training.learning_rate"},
    {{"lr_scheduler_type", "scheduler", "lr_schedule"}, "training.lr_scheduler"},
    {{"warmup_steps", "num_warmup_steps"}, "training.warmup_ratio: warm-up steps / total steps"},
    {{"beta1", "adam_beta_1"}, "training.adam_beta1"},
    {{"beta2", "adam_beta_2"}, "training.adam_beta2"},
    {{"adam_eps", "eps", "epsilon"}, "training.adam_epsilon"},
    {{"gradient_clipping", "clip_grad", "clip_grad_norm", "max_norm", "gradient_clip_val"}, "training.max_grad_norm"},
    {{"fp16"}, "training.precision: fp16"},
    {{"bf16"}, "training.precision: bf16"},
    {{"tf32"}, "no equivalent: training.precision is bf16, fp16 or fp32"},
    {{"torch_dtype", "dtype", "compute_dtype", "mixed_precision", "bnb_4bit_compute_dtype", "model_dtype"},
     "training.precision"},
    {{"gradient_checkpointing", "use_gradient_checkpointing", "activation_checkpointing", "grad_checkpoint",
      "use_reentrant_gc", "vit_gradient_checkpointing"},
     "memory.recompute: auto recomputes as few blocks as fit"},
    {{"optim", "optimizer", "optimizer_name", "optim_type"},
     "the optimizer is AdamW; training.optimizer_states: 8bit stores its moments in 8 bits"},
    {{"lora_r", "lora_rank", "r", "lora_dim"}, "lora.rank"},
    {{"lora_alpha"}, "lora.alpha"},
    {{"lora_dropout"}, "lora.dropout"},
    {{"lora_target", "lora_target_modules", "lora_namespan_exclude"}, "lora.target_modules"},
    {{"additional_target", "lora_modules_to_save"}, "lora.modules_to_save"},
    {{"lora_enable", "use_lora", "use_peft", "finetuning_type", "train_type", "tuner_type", "sft_type"},
     "lora.rank: above 0 trains adapters, 0 trains the full model"},
    {{"load_in_4bit", "bits", "quantization_bit", "quant_bits", "bnb_4bit_quant_type", "use_4bit", "double_quant"},
     "model.quantization: nf4 (or int8), with lora.rank"},
    {{"load_in_8bit", "use_8bit"}, "model.quantization: int8, with lora.rank"},
    {{"adapter_name_or_path", "adapters", "lora_model_dir", "resume_from_adapter"}, "model.adapter"},
    {{"model_name_or_path", "model_name", "model_id", "base_model", "pretrained_model_name_or_path", "model_path"},
     "model.path: the folder of a checkpoint"},
    {{"freeze_vit", "freeze_vision_encoder", "freeze_vision_modules", "unfreeze_mm_vision_tower", "tune_mm_vision",
      "tune_vision", "freeze_visual_encoder"},
     "model.freeze_vision_tower"},
    {{"freeze_aligner", "freeze_multi_modal_projector", "freeze_merger", "tune_mm_mlp", "tune_mm_mlp_adapter",
      "freeze_mm_mlp_adapter", "freeze_connector"},
     "model.freeze_projector"},
    {{"freeze_llm", "freeze_backbone", "tune_mm_llm", "tune_language", "train_on_text_model"},
     "model.freeze_language_model"},
    {{"vit_lr", "vision_lr", "vision_tower_lr", "mm_vision_tower_lr", "vision_encoder_lr"},
     "training.vision_learning_rate"},
    {{"aligner_lr", "merger_lr", "projector_lr", "mm_projector_lr", "connector_lr"},
     "training.projector_learning_rate"},
    {{"dataset", "datasets", "dataset_name", "dataset_path", "train_file", "train_data", "data_path", "data_file",
      "dataset_use", "train_dataset"},
     "data.train: a file of conversations"},
    {{"eval_dataset", "val_dataset", "validation_file", "eval_file", "val_data", "test_datasets"}, "data.eval"},
    {{"image_folder", "image_dir", "images_dir", "media_dir", "image_path", "video_folder", "images_root"},
     "data.image_root"},
    {{"norm_bbox"}, "data.boxes.out: the format of the model family by default"},
    {{"cutoff_len", "max_seq_length", "max_seq_len", "sequence_len", "seq_length", "model_max_length", "block_size"},
     "data.max_length: longer samples are dropped or rejected, never truncated"},
    {{"max_pixels", "image_size", "image_resolution"}, "data.image_max_pixels"},
    {{"min_pixels", "image_min_pixels"}, "no equivalent: the model's processor sets it"},
    {{"max_frames", "video_maxlen", "nframes", "num_frames", "fps_max_frames", "video_max_len"},
     "data.video_max_frames"},
    {{"fps", "video_sample_fps"}, "data.video_fps"},
    {{"max_images", "num_images", "limit_mm_per_prompt"}, "data.max_images_per_sample"},
    {{"dataloader_num_workers", "preprocessing_num_workers", "num_proc", "dataset_num_proc", "workers"},
     "data.num_workers"},
    {{"template", "conv_version", "conv_mode", "conversation_template"}, "data.chat_template"},
    {{"neat_packing", "sample_packing", "group_by_length", "group_by_modality_length", "padding_free",
      "remove_unused_columns", "padding_side", "pad_to_sequence_len", "pad_to_multiple_of"},
     "nothing to set: samples are always concatenated without padding"},
    {{"output_dir", "logging_dir", "run_name", "save_path"}, "output.dir"},
    {{"save_total_limit"}, "output.save_total_limit"},
    {{"save_strategy", "save_interval", "save_every"}, "output.save_steps"},
    {{"save_safetensors", "save_only_model"}, "nothing to set: checkpoints are safetensors plus the trainer state"},
    {{"report_to", "log_with"}, "output.tensorboard and output.report; metrics.jsonl has every step"},
    {{"logging_steps", "log_interval", "logging_strategy", "logging_first_step"},
     "nothing to set: metrics.jsonl has a line for every step"},
    {{"eval_steps", "eval_strategy", "evaluation_strategy", "do_eval", "eval_interval", "val_size",
      "load_best_model_at_end"},
     "training.eval_steps, on data.eval; vlmtrain eval --checkpoint evaluates one checkpoint"},
    {{"resume_from_checkpoint", "resume", "overwrite_output_dir", "auto_resume"},
     "training.resume: auto resumes from the newest checkpoint in output.dir, changed does so with other settings, "
     "never fails if one exists"},
    {{"random_seed", "data_seed", "manual_seed"}, "training.seed"},
    {{"deepspeed", "fsdp", "fsdp_config", "zero_stage", "ddp_find_unused_parameters", "nproc_per_node", "num_gpus",
      "world_size", "devices", "accelerator"},
     "ranks train data-parallel (--nproc-per-node, torchrun, srun; docs/several-ranks.md), and distributed.sharding "
     "shards optimizer states (optimizer) or also weights (full, hybrid)"},
    {{"flash_attn", "attn_implementation", "attn_impl", "use_flash_attention", "use_flash_attention_2",
      "enable_liger_kernel", "use_liger_kernel", "torch_compile", "use_unsloth"},
     "nothing to set: the device and the precision determine the kernels"},
    {{"trust_remote_code", "stage", "do_train", "use_fast_tokenizer", "hub_model_id", "push_to_hub", "use_cache"},
     "no equivalent: remove it"},
};

}  // namespace

std::optional<std::string> find_equivalent_option(std::string_view key) {
  const std::string_view name = key.substr(key.rfind('.') + 1);  // npos + 1 is 0
  for (const EquivalentOption& option : kEquivalentOptions) {
    if (std::find(option.keys.begin(), option.keys.end(), name) != option.keys.end())
      return std::string(option.equivalent);
  }
  return std::nullopt;
}

}  // namespace vlmtrain::train

#include "train/settings/options.h"

namespace vlmtrain::train {

void declare_options(OptionTable& table, OutputOptions& options) {
  table.set_section_description("output", "Folder, checkpoints and reports of the run.");
  table.add(keys::output::kDir, options.dir,
            {.doc = "Folder of the run: configuration, metrics, ledger, checkpoints.",
             .resume = ResumeRule::kFree,
             .hints = {{.names = {"output_dir", "logging_dir", "run_name", "save_path", "checkpoint_dir"}}}});
  table.add_enum(
      keys::output::kDtype, options.dtype,
      {{"auto", OutputDtype::kAuto},
       {"fp32", OutputDtype::kFp32},
       {"bf16", OutputDtype::kBf16},
       {"fp16", OutputDtype::kFp16}},
      {.doc =
           "Data type of the weights in checkpoints. auto: that of each weight in the checkpoint that training started "
           "from. Frozen weights stay bit-exact; trained ones are rounded from their fp32 values (docs/models.md).",
       .resume = ResumeRule::kFree});
  table.add(keys::output::kSaveSteps, options.save_steps,
            {.doc = "Number of steps between checkpoints; one is always written at the end. 0: only at the end.",
             .resume = ResumeRule::kFree,
             .unit = "steps",
             .hints = {{.names = {"save_strategy", "save_interval", "save_every", "saves_per_epoch", "ckpt_every_steps",
                                  "save_freq"}}}},
            at_least<int64_t>(0));
  table.add(keys::output::kSaveTotalLimit, options.save_total_limit,
            {.doc = "Maximum number of checkpoints to keep; older ones are removed.",
             .resume = ResumeRule::kFree,
             .unit = "checkpoints",
             .aliases = {"output.keep"},
             .hints = {{.names = {"save_total_limit"}}}},
            at_least<int64_t>(1));
  table.add(
      keys::output::kKeepBest, options.keep_best,
      {.doc =
           "If true and the run has evaluations, a checkpoint is written at each step that is the best so far. It is "
           "kept in addition to those of `output.save_total_limit`, and `checkpoints/best` links to it.",
       .resume = ResumeRule::kFree});
  table.add_enum(
      keys::output::kAsyncSave, options.async_save,
      {{"auto", AsyncSaveMode::kAuto}, {"true", AsyncSaveMode::kAlways}, {"false", AsyncSaveMode::kNever}},
      {.doc = "Whether training continues while a checkpoint is written, from copies of the trained values and the "
              "optimizer's states in host memory. `auto`: if the copies fit (docs/memory.md). `false`: the next "
              "step waits until the checkpoint is written.",
       .resume = ResumeRule::kFree});
  table.add(
      keys::output::kSamplePredictions, options.num_sample_predictions,
      {.doc = "Number of samples of `data.eval`, or of `data.train` if it is empty, that the model answers at each "
              "checkpoint. report.html and TensorBoard show the answers. 0: none.",
       .resume = ResumeRule::kFree,
       .unit = "samples"},
      at_least<int64_t>(0));
  table.add(
      keys::output::kSamplePredictionsShare, options.max_prediction_time_share,
      {.doc = "Maximum share of the time since the first step that these answers may take. If they take longer, fewer "
              "samples are answered per checkpoint, in turn, and at least one at the end of the run. 1: always all.",
       .resume = ResumeRule::kFree},
      between(0.0, 1.0));
  table.add(keys::output::kReport, options.write_report,
            {.doc = "If true, report.html is written during the run.", .resume = ResumeRule::kFree});
  table.add(keys::output::kTensorboard, options.write_tensorboard,
            {.doc = "If true, event files for TensorBoard are written.",
             .resume = ResumeRule::kFree,
             .hints = {{.names = {"report_to", "log_with", "wandb_project", "wandb_entity", "wandb_name",
                                  "wandb_run_name", "wandb_watch", "wandb_log_model", "plot_loss"},
                        .text = "output.tensorboard and output.report; metrics.jsonl has every step"}}});
  table.add(
      keys::output::kLogSamples, options.log_samples,
      {.doc = "If true, the ids of each step's samples are written to samples.jsonl.", .resume = ResumeRule::kFree});
}

void declare_options(OptionTable& table, DistributedOptions& options) {
  table.set_section_description("distributed", "Sharding and rendezvous of several ranks (docs/several-ranks.md).");
  table.add_enum(
      keys::distributed::kSharding, options.sharding,
      {{"none", engine::ShardingStrategy::kNone},
       {"optimizer", engine::ShardingStrategy::kOptimizer},
       {"full", engine::ShardingStrategy::kFull},
       {"hybrid", engine::ShardingStrategy::kHybrid},
       {"auto", std::nullopt}},
      {.doc =
           "Sharding of the training state among the ranks. `none`: each rank holds everything. `optimizer`: each rank "
           "holds and updates a part of the optimizer's moments and fp32 master weights (ZeRO stage 1). `full`: also a "
           "part of the weights and gradients of all blocks; a block's weights are gathered just before it runs (ZeRO "
           "stage 3, FSDP). `hybrid`: `full` among the ranks of a node, and each node holds everything. `auto`: of the "
           "settings that fit, the one with the shortest predicted step time. No effect with one rank.",
       .resume = ResumeRule::kFree,
       .hints = {{.names = {"deepspeed", "fsdp", "fsdp_config", "zero_stage", "ddp_find_unused_parameters",
                            "nproc_per_node", "num_gpus", "world_size", "devices", "accelerator", "tp_size", "cp_size",
                            "dp_size", "tensor_parallel_size", "context_parallel_size", "pipeline_parallel_size"},
                  .text = "ranks train data-parallel (--nproc-per-node, torchrun, srun; docs/several-ranks.md), and "
                          "distributed.sharding shards optimizer states (optimizer) or also weights (full, hybrid)"}}});
  constexpr int64_t kSecondsPerDay = 86'400;
  table.add(keys::distributed::kRendezvousSeconds, options.rendezvous_timeout_seconds,
            {.doc = "Seconds within which all ranks must connect; increase it if nodes or containers start far apart.",
             .resume = ResumeRule::kFree,
             .unit = "seconds",
             .hints = {{.names = {"ddp_timeout", "timeout_minutes"},
                        .text = "distributed.rendezvous_seconds: the time within which all ranks connect"}}},
            between<int64_t>(1, kSecondsPerDay));
}

}  // namespace vlmtrain::train

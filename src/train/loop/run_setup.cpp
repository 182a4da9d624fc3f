#include "train/loop/run_setup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "train/checkpoint/master_weights.h"
#include "train/checkpoint/resume.h"
#include "train/data_check/data_check.h"
#include "train/data_check/run_records.h"
#include "train/run/run_folder.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/sample/statistics.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/models/base_weights.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor.h"
#include "vlmtrain/train/components.h"
#include "vlmtrain/train/custom_kernels.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/sample_limits.h"
#include "vlmtrain/train/saved_settings.h"

namespace vlmtrain::train {

namespace {

// Keys of the limits in trainer_state/state.json.
constexpr const char* kHostMemoryLimitKey = "tensor_limit_bytes";
constexpr const char* kDeviceMemoryLimitKey = "limit_bytes";

}  // namespace

RunSetup::RunSetup(const Config& config, at::Device device, const RankGroup& ranks)
    : folder(get_run_folder(config)),
      records(open_training_records(config, &hold_out_sources)),
      processor(models::load_processor(config.model.folder(),
                                       make_processor_settings(config.data, config.model.adapter_folder()))),
      checkpoints(folder, config.output.save_total_limit, config.output.keep_best),
      ledger(config.data.train.name(), records->size()),
      ranks_(ranks) {
  checkpoints.check_newest_checkpoint(ranks.is_main_process() && !is_dry_run()
                                          ? CheckpointVerificationScope::kAllFiles
                                          : CheckpointVerificationScope::kSmallFiles);
  load_checkpoint_state(config, device);
  data::SampleIndex sample_index = check_training_data(config);
  warn_about_changed_samples(config, sample_index);
  init_sample_order(config, sample_index);
  if (is_resumed) restore_ledger(config);
  if (ranks.is_main_process()) log_training_data_remarks(config, *records, sample_index);
  handle_bad_samples(sample_index, config, *records, ledger, folder / "ledger.json", earlier_version_ignored_keys);
  if (sample_index.is_complete) ledger.set_precounted_notices(std::move(sample_index.notices));
  task_balancer.emplace(config.training.batch_and_tasks, data::TaskTable(sample_index, *records),
                        get_mask_loss_weights(config));
  set_total_steps(config);
  if (config.evaluation.is_enabled()) check_evaluation_data(config, sample_index);
  has_media = !sample_index.is_complete || !data::count_samples_by_media_kind(sample_index.shapes).is_text_only();
  load_custom_kernels(config.training, device);
  planner::Job job = make_training_job(config, task_balancer->initial_settings());
  job.optimizer.master_weights = get_master_weights(state.fingerprint);
  job.world_size = ranks.world_size();
  job.rank = ranks.rank();
  job.num_nodes = ranks.compute_num_replicas(config.distributed.sharding);
  has_videos_ = sample_index.shapes.has_videos();
  const auto workload = make_workload(sample_index, *order, config, ranks.world_size());
  const auto cpu_settings = device.is_cpu() ? disable_offload(config.memory, job) : engine::HostMemorySettings{};
  make_plans(config, device, job, workload, sample_index.decode_bytes);
  if (plan) job = plan->job();
  if (device.is_cpu()) {
    job.offload = cpu_settings.offload;
    job.offload_activations = cpu_settings.offloads_activations;
  }
  if (evaluation_set) plan_evaluation(config);
  load(config, device, job);
  if (ranks.is_main_process() && !is_dry_run() && !hold_out_sources.empty())
    save_held_out_splits(config, hold_out_sources);
  hold_out_sources.clear();
}

void RunSetup::load_checkpoint_state(const Config& config, at::Device device) {
  const auto checkpoint = checkpoints.find_newest();
  auto fingerprint = make_run_fingerprint(config, records->size());
  set_master_weights(config.training, device.is_cuda(), fingerprint);
  // A virtual GPU has no values, so nothing is saved.
  if (!is_dry_run()) {
    base = std::make_unique<models::BaseWeights>(config.model.folder(), config.model.adapter_folder());
    fingerprint[kBaseWeightsKey] = models::compute_base_fingerprint(*base);
  }
  is_resumed = checkpoint.has_value();
  if (checkpoint) {
    auto resume_point = load_resume_point(*checkpoint, config, std::move(fingerprint));
    fingerprint = std::move(resume_point.fingerprint);
    state = std::move(resume_point.state);
    changes = std::move(resume_point.changes);
    checkpoint_fingerprint_ = state.fingerprint;
  }
  state.fingerprint = std::move(fingerprint);
}

void RunSetup::warn_about_changed_samples(const Config& config, const data::SampleIndex& sample_index) const {
  if (!is_resumed || affects_samples(changes) || sample_index.num_changed_samples == 0) return;
  spdlog::warn(
      "{}: {} of {} changed since the run last read them, according to their records or the sizes and times of their "
      "files; the run continues with the changed samples",
      config.data.train.name(), sample_index.num_changed_samples, pluralize(records->size(), "sample"));
}

void RunSetup::init_sample_order(const Config& config, data::SampleIndex& sample_index) {
  order.emplace(make_run_sample_order(*records, config, sample_index));
  const std::string order_fingerprint = order->fingerprint();
  log_pack_utilization(*order);
  if (order_fingerprint.empty()) return;
  state.fingerprint[kSampleSizesKey] = order_fingerprint;
  if (!is_resumed) return;
  if (auto order_changes = find_setting_changes(checkpoint_fingerprint_, {{kSampleSizesKey, order_fingerprint}});
      !order_changes.empty() && !affects_samples(changes)) {
    changes.insert(changes.end(), order_changes.begin(), order_changes.end());
    check_setting_changes(changes, config.resume_policy, *checkpoints.find_newest());
  }
}

nlohmann::ordered_json RunSetup::make_ledger_json() const {
  auto json = ledger.to_json();
  if (evaluation_set) {
    json["evaluation"] = {{"dataset", evaluation_set->name()},
                          {"samples", evaluation_set->records()->size()},
                          {"notices", evaluation_set->notices().to_json()}};
  }
  if (order->num_sources() == 1) return json;
  data::EpochProgress progress(ledger, *order);
  auto sources_json = nlohmann::ordered_json::array();
  const auto& shares = order->mixture_sampler().shares(state.cursor.num_batches);
  for (int64_t index = 0; index < order->num_sources(); ++index) {
    const data::MixtureSource& source = order->source(index);
    const auto count_samples_with_status = [&](data::SampleStatus status) {
      return std::ranges::count_if(source.samples, [&](int64_t sample) { return ledger.status(sample) == status; });
    };
    sources_json.push_back({{"name", source.name},
                            {"share", shares[static_cast<size_t>(index)]},
                            {"samples", source.samples.size()},
                            {"used", count_samples_with_status(data::SampleStatus::kUsed)},
                            {"dropped", count_samples_with_status(data::SampleStatus::kDropped)},
                            {"epochs", progress.compute_source_progress(index, state.cursor)}});
  }
  json["mixture"] = std::move(sources_json);
  io::add_field_aliases(json, {{"mixture", "drawn_from"}});
  return json;
}

void RunSetup::restore_ledger(const Config& config) {
  const auto saved_ledger = load_ledger(*checkpoints.find_newest());
  if (!affects_samples(changes)) {
    earlier_version_ignored_keys = saved_ledger.is_object() && !saved_ledger.contains("notices");
    order->check_cursor(state.cursor, config.data.train.name());
    ledger = data::Ledger::restore(saved_ledger, config.data.train.name(), *order, state.cursor);
    return;
  }
  const auto samples = parse_int_after_prefix("", format_setting_value(checkpoint_fingerprint_, kSampleCountKey));
  if (!samples || !saved_ledger.is_object() || saved_ledger.value("samples", nlohmann::ordered_json()) != *samples) {
    throw data_error("{}: its ledger does not match the {} samples of its state; copy the checkpoint again",
                     checkpoints.find_newest()->string(), samples.value_or(0));
  }
  if (ranks_.is_main_process())
    io::write_file(folder / get_old_ledger_name(), io::to_json_string(saved_ledger, 2) + "\n");
  state.cursor = order->make_start_cursor();
}

std::string RunSetup::get_old_ledger_name() const {
  return fmt::format("ledger-to-step-{}.json", state.step);
}

void RunSetup::set_total_steps(const Config& config) {
  const double batch_units_per_epoch = data::count_batch_units_per_epoch(*order, ledger);
  const auto& options = config.training;
  if (!is_resumed) state.total_steps = train::compute_total_steps(options, batch_units_per_epoch);
  if (!changes.empty()) {
    const double epochs = data::EpochProgress(ledger, *order).at(state.cursor);
    state.total_steps = compute_total_steps_after_change(state.step, epochs, options, batch_units_per_epoch);
    if (*state.total_steps <= state.step) {
      throw usage_error(
          "{}: the run has completed {}, and training.{} adds no more, so the changed settings would have no "
          "effect; raise it",
          checkpoints.find_newest()->string(), pluralize(state.step, "step"),
          options.max_steps ? fmt::format("max_steps={}", *options.max_steps)
                            : fmt::format("epochs={}", options.epochs));
    }
    state.last_settings_change_step = state.step;
    if (affects_schedule(changes)) {
      const bool restarts_schedule = config.schedule_origin == ScheduleOrigin::kLastChange;
      state.schedule_start = {.step = restarts_schedule ? state.step : 0,
                              .num_skipped_steps = restarts_schedule ? state.num_skipped_steps : 0};
    }
  }
  total_steps = state.total_steps.value_or(train::compute_total_steps(options, static_cast<double>(records->size())));
  learning_rate_schedule.shape = options.lr_scheduler;
  learning_rate_schedule.total_steps = total_steps - state.schedule_start.step;
  learning_rate_schedule.warmup_steps =
      std::llround(options.warmup_ratio * static_cast<double>(learning_rate_schedule.total_steps));
}

double RunSetup::compute_schedule_factor() const {
  const auto& start = state.schedule_start;
  return learning_rate_schedule.compute_factor((state.step - state.num_skipped_steps) -
                                               (start.step - start.num_skipped_steps));
}

std::string RunSetup::describe_batch_split(const Config& config) const {
  const int64_t micro_batch_size = step_config.micro_batch_size;
  if (!step_config.memory_cost_table && order->settings().pack_limits)
    return fmt::format("in micro-batches of {}", pluralize(micro_batch_size, "sample"));
  if (!step_config.memory_cost_table) {
    const int64_t num_micro_batches = config.training.global_batch_size / micro_batch_size;
    return fmt::format("in {} micro-batch{} of {}", num_micro_batches, num_micro_batches == 1 ? "" : "es",
                       micro_batch_size);
  }
  const auto& split_plan = plan ? plan->micro_batch_split_plan() : host_plan->micro_batch_split_plan();
  if (!split_plan) return "each split by memory, as at the start of the run";
  return fmt::format("each split by memory: {:.1f} micro-batches on average, {} to {} in {} sampled steps",
                     split_plan->mean_micro_batches_per_step, split_plan->min_micro_batches_per_step,
                     split_plan->max_micro_batches_per_step, split_plan->num_sampled_steps);
}

std::string RunSetup::describe_setting_changes(const Config& config) const {
  if (changes.empty()) return {};
  std::vector<std::string> texts;
  for (const auto& change : changes)
    texts.push_back(fmt::format("{}: {} → {}", change.key, change.old_value, change.new_value));
  std::string text =
      fmt::format("step {}: the run continues with other settings: {}. The moments of {} trained tensors are kept",
                  state.step, fmt::join(texts, "; "), migration_result_.num_migrated_parameters);
  if (migration_result_.num_reset_parameters > 0)
    text += fmt::format(", those of {} start at zero", migration_result_.num_reset_parameters);
  if (affects_samples(changes)) {
    text += fmt::format("; the data set starts from its beginning, the ledger of the previous one is {}",
                        get_old_ledger_name());
  }
  if (!restores_task_weights_) text += "; GradNorm's weights are reset";
  return text + fmt::format("; the learning rate continues at {:.3g}, the run has {} in total",
                            compute_learning_rates(config.training, compute_schedule_factor()).language_model,
                            pluralize(total_steps, "step"));
}

void RunSetup::make_plans(const Config& config, at::Device device, planner::Job& job, const planner::Workload& workload,
                          int64_t decode_bytes) {
  const auto saved_plan = load_saved_plan(device);
  if (config.distributed.sharding || ranks_.is_single_process()) {
    make_plan(config, device, job, workload, decode_bytes, saved_plan);
    return;
  }
  const auto plan_with_sharding = [&](engine::ShardingStrategy sharding) {
    Config resolved_config = config;
    resolved_config.distributed.sharding = job.sharding = sharding;
    make_plan(resolved_config, device, job, workload, decode_bytes, saved_plan);
  };
  if (device.is_cpu()) {
    job.sharding = find_first_fitting_sharding(job, plan_with_sharding);
    spdlog::info("{}: {}", keys::distributed::kSharding, engine::to_string(job.sharding));
    return;
  }
  make_plan(config, device, job, workload, decode_bytes, saved_plan);
  const auto local_sharding = plan ? plan->job().sharding : job.sharding;
  job.sharding = all_reduce_max_sharding(local_sharding);
  if (plan && job.sharding != local_sharding) plan_with_sharding(job.sharding);
}

/// Returns the first sharding, of those with the most memory first, that fits on all ranks. A CPU
/// has no predicted step times to compare. Rethrows the last sharding's error if none fits.
template <class MakePlan>
engine::ShardingStrategy RunSetup::find_first_fitting_sharding(const planner::Job& job,
                                                               const MakePlan& make_plan) const {
  const auto shardings = planner::list_possible_shardings(job);
  for (const auto sharding : shardings) {
    bool fits = true;
    try {
      make_plan(sharding);
    } catch (const UserError& error) {
      if (error.code() != ExitCode::kDoesNotFit || sharding == shardings.back()) throw;
      fits = false;
    }
    if (!ranks_.consensus().any_rank(!fits)) return sharding;
  }
  return shardings.back();
}

/// Returns the strongest sharding that a rank has planned. It fits on all ranks, whose plans may
/// differ with their samples.
engine::ShardingStrategy RunSetup::all_reduce_max_sharding(engine::ShardingStrategy local_sharding) const {
  for (const auto& rank_sharding :
       ranks_.consensus().all_gather_strings(std::to_string(static_cast<int>(local_sharding)))) {
    local_sharding = std::max(
        local_sharding, static_cast<engine::ShardingStrategy>(parse_int_after_prefix("", rank_sharding).value_or(0)));
  }
  return local_sharding;
}

/// Returns the checkpoint's plan; nullopt for a new run and with changed settings.
std::optional<SavedPlan> RunSetup::load_saved_plan(at::Device device) const {
  const auto& json = device.is_cpu() ? state.saved_host_plan : state.saved_device_plan;
  if (!is_resumed || json.is_null() || !changes.empty()) return std::nullopt;
  return SavedPlan::from_json(json, device.is_cpu() ? kHostMemoryLimitKey : kDeviceMemoryLimitKey,
                              checkpoints.find_newest()->string());
}

void RunSetup::make_plan(const Config& config, at::Device device, const planner::Job& job, planner::Workload workload,
                         int64_t decode_bytes, const std::optional<SavedPlan>& saved_plan) {
  workload.num_nodes = ranks_.num_nodes();
  auto sample_limits = make_sample_limits(records, config, workload);
  if (device.is_cpu()) {
    host_plan = std::make_unique<HostRunPlan>(config, std::move(workload), std::move(sample_limits), decode_bytes, job,
                                              ranks_, folder, saved_plan);
    state.saved_host_plan = host_plan->saved_plan().to_json(kHostMemoryLimitKey);
    return;
  }
  try {
    const bool is_split_planned = !is_resumed || !changes.empty();
    plan.emplace(config, device, std::move(workload), std::move(sample_limits), job, ranks_, folder,
                 is_split_planned ? MicroBatchSplitSource::kPlanner : MicroBatchSplitSource::kCheckpoint, saved_plan);
    state.saved_device_plan = plan->saved_plan() ? plan->saved_plan()->to_json(kDeviceMemoryLimitKey) : nullptr;
  } catch (const PlanningError& failure) {
    prepare_run_without_plan(config, device, failure, ranks_, folder);
  }
}

data::SampleIndex RunSetup::check_training_data(const Config& config) const {
  data::SampleIndex sample_index;
  ranks_.main_process_first([&] {
    sample_index = check_data(*records, *processor, config, config.data.train.name(), folder / "data_check.jsonl");
  });
  return sample_index;
}

void RunSetup::check_evaluation_data(const Config& config, data::SampleIndex& train_index) {
  ranks_.main_process_first([&] { evaluation_set.emplace(config, *processor, folder / "eval_check.jsonl"); });
  if (ranks_.is_main_process()) log_train_eval_overlap(config, evaluation_set->sample_index(), train_index);
  train_index.fingerprints = {};
}

void RunSetup::plan_evaluation(const Config& config) {
  evaluation_plan.batch_size = config.evaluation.batch_size.value_or(1);
  try {
    if (plan) evaluation_plan = plan->plan_evaluation(config, *evaluation_set);
    if (host_plan) evaluation_plan = host_plan->plan_evaluation(config, *evaluation_set);
  } catch (const std::exception& error) {
    spdlog::warn("evaluations are not planned ({}); they use batches of {}", get_first_line(error.what()),
                 evaluation_plan.batch_size);
    return;
  }
  if (!plan && !host_plan) return;
  spdlog::info("evaluations: {} in batches of {}, planned in {:.1f} s{}",
               pluralize(evaluation_set->records()->size(), "sample"), evaluation_plan.batch_size,
               evaluation_plan.seconds,
               evaluation_plan.fits ? "" : "; the largest may not fit, and is then split or dropped");
}

void RunSetup::load(const Config& config, at::Device device, const planner::Job& job) {
  const auto checkpoint = checkpoints.find_newest();
  if (base) set_saved_files(*base, config, *processor, has_videos_);
  model = load_model(config, job, device, checkpoint, /*load_weights=*/!is_dry_run());
  // Set if the run changed: then frozen weights or master weights also come from the checkpoint.
  std::optional<models::BaseWeights> checkpoint_weights;
  if (base && checkpoint && !(changes.empty() && state.keys_frozen_after_training.empty())) {
    const bool has_lora = model->parameters().lora().has_value();
    checkpoint_weights.emplace(has_lora ? std::filesystem::path(config.model.folder()) : *checkpoint,
                               has_lora ? *checkpoint : "");
  }
  if (base && checkpoint) {
    state.keys_frozen_after_training =
        resume_freezing(config, checkpoint_fingerprint_, state.keys_frozen_after_training, *checkpoint,
                        checkpoint_weights ? &*checkpoint_weights : nullptr, *base, *model);
  }
  if (plan || host_plan)
    step_config = plan ? plan->step_config() : host_plan->saved_plan().step_config;
  else
    step_config = make_min_memory_step_config(config, model->num_vision_blocks(), model->num_language_blocks());
  step_config.recompute =
      models::clamp_recompute_counts(step_config.recompute, {model->num_vision_blocks(), model->num_language_blocks()});
  training = std::make_unique<engine::TrainingState>(*model, job.optimizer,
                                                     engine::make_objective(job.objective)->num_gradient_groups(),
                                                     job.shard(), job.host_memory());
  if (!checkpoint) return;
  if (changes.empty()) {
    load_optimizer_state(*checkpoint, training->optimizer);
  } else {
    migration_result_ =
        migrate_optimizer_state(*checkpoint, *checkpoint_weights, model->parameters(), training->optimizer);
    restores_task_weights_ =
        task_balancer->has_same_tasks(affects_samples(changes) ? nlohmann::ordered_json() : state.task_balance_state);
  }
  if (restores_task_weights_) task_balancer->restore(state.task_balance_state, checkpoint->string());
}

}  // namespace vlmtrain::train

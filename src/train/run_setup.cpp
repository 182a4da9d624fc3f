#include "train/run_setup.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "train/data_check.h"
#include "train/data_remarks.h"
#include "train/frozen_on_the_way.h"
#include "train/held_out_of_run.h"
#include "train/resumption.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_behind.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/data/epoch_progress.h"
#include "vlmtrain/data/media_census.h"
#include "vlmtrain/data/pack_census.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/models/base_fingerprint.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/models/processor_files.h"
#include "vlmtrain/planner/virtual_card.h"
#include "vlmtrain/train/media_options_of_run.h"
#include "vlmtrain/train/own_kernels.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/sample_limits.h"
#include "vlmtrain/train/setup.h"
#include "vlmtrain/train/volume_options_of_run.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::train {

namespace {

// The limits in trainer_state/state.json.
constexpr const char* kHostLimitKey = "tensor_limit_bytes";
constexpr const char* kDeviceLimitKey = "limit_bytes";

/// Of the machines that hold a whole training each, where ranks may share one within them.
int64_t nodes_of_shards(const Config& config, const RunRanks& ranks) {
  const auto& sharding = config.distributed.sharding;
  if (ranks.is_alone() || (sharding && sharding != engine::Sharding::kHybrid)) return 1;
  try {
    return ranks.world_size() / ranks.ranks_of_a_node();
  } catch (const UserError&) {
    if (sharding) throw;
    return 1;  // it is not chosen then
  }
}

}  // namespace

bool is_rehearsal() {
  return planner::on_virtual_card();
}

std::filesystem::path run_folder(const Config& config) {
  const std::filesystem::path folder = config.output.dir;
  return is_rehearsal() ? folder / fmt::format("virtual-{}", vgpu::attached()->card()) : folder;
}

RunSetup::RunSetup(const Config& config, at::Device device, const RunRanks& ranks)
    : folder(run_folder(config)),
      records(training_records(config, &divided)),
      processor(models::load_processor(config.model.path, processor_settings(config.data, config.model.adapter))),
      checkpoints(folder, config.output.keep, config.output.keep_best),
      ledger(config.data.train.name(), records->size()),
      ranks_(ranks) {
  checkpoints.check(ranks.writes() && !is_rehearsal() ? CheckedContents::kAll : CheckedContents::kSmallFiles);
  find_newest(config);
  data::Outlines outlines = look_at_trained(config);
  warn_of_changed(config, outlines);
  make_order(config, outlines);
  if (resumed) restore_ledger(config);
  if (ranks.writes()) log_remarks_on_training(config, *records, outlines);
  settle_bad_samples(outlines, config, *records, ledger, folder / "ledger.json", read_otherwise);
  if (outlines.are_all) ledger.enter_notices(std::move(outlines.notices));
  tasks.emplace(config.training.balance, data::Tasks(outlines, *records), mask_losses(config));
  settle_steps(config);
  if (config.evaluation.are_wanted()) look_at_evaluated(config, outlines);
  has_media = !outlines.are_all || !data::media_census(outlines.shapes).is_blind();
  open_kernels(config.training, device);
  planner::Job job = job_of(config, tasks->initial_settings());
  job.world_size = ranks.world_size();
  job.rank = ranks.rank();
  job.nodes = nodes_of_shards(config, ranks);
  has_videos_ = outlines.shapes.have_videos();
  const auto workload = workload_of(outlines, *order, config, ranks.world_size());
  make_plans(config, device, job, workload, outlines.making_bytes);
  if (evaluated) plan_evaluation(config);
  load(config, device, job);
  if (ranks.writes() && !is_rehearsal() && !divided.empty()) remember_held_out(config, divided);
  divided.clear();
}

void RunSetup::find_newest(const Config& config) {
  const auto newest = checkpoints.newest();
  auto fingerprint = run_fingerprint(config, records->size());
  // A virtual card holds no values.
  if (!is_rehearsal()) {
    base = std::make_unique<models::BaseWeights>(config.model.path, config.model.adapter);
    fingerprint[kBaseKey] = models::base_fingerprint(*base);
  }
  resumed = newest.has_value();
  if (newest) {
    auto resumption = resume_from(*newest, config, fingerprint);
    state = std::move(resumption.state);
    changes = std::move(resumption.changes);
    before_ = state.fingerprint;
  }
  state.fingerprint = std::move(fingerprint);
}

void RunSetup::warn_of_changed(const Config& config, const data::Outlines& outlines) const {
  if (!resumed || has_other_samples() || outlines.changed == 0) return;
  spdlog::warn(
      "{}: {} of {} are not what they were when the run looked at them last, by their records or by sizes and times of "
      "their files; it goes on with what they are now",
      config.data.train.name(), outlines.changed, counted(records->size(), "sample"));
}

void RunSetup::make_order(const Config& config, data::Outlines& outlines) {
  order.emplace(order_of(*records, config, outlines));
  const std::string sizes = order->fingerprint();
  describe_packs();
  if (sizes.empty()) return;
  state.fingerprint[kOrderKey] = sizes;
  if (!resumed) return;
  if (auto found = changes_since(before_, {{kOrderKey, sizes}}); !found.empty() && !has_other_samples()) {
    changes.insert(changes.end(), found.begin(), found.end());
    check_changes(changes, config.resume, *checkpoints.newest());
  }
}

void RunSetup::describe_packs() const {
  const auto& limits = order->settings().packs;
  if (!limits) return;
  const data::Packs packs = data::first_packs(*order);
  const data::PackFill fill = data::census_of(packs, order->sizes(), *limits).fill;
  spdlog::info(
      "packs: {} of {} in the first epoch; {:.1f} % of {} tokens and {:.1f} % of {} images are taken; {} could "
      "take no more for their images{}",
      fill.packs, counted(std::ssize(packs.samples), "sample"), 100 * fill.tokens, limits->tokens, 100 * fill.images,
      limits->images, fill.bound_by_media, limits->tiles ? " or tiles" : "");
}

nlohmann::ordered_json RunSetup::ledger_json() const {
  auto json = ledger.to_json();
  if (evaluated) {
    json["evaluation"] = {{"dataset", evaluated->name()},
                          {"samples", evaluated->records()->size()},
                          {"notices", evaluated->notices().to_json()}};
  }
  if (order->lanes() == 1) return json;
  data::EpochProgress progress(ledger, *order);
  auto lanes = nlohmann::ordered_json::array();
  const auto& shares = order->chooser().shares(state.cursor.batches);
  for (int64_t number = 0; number < order->lanes(); ++number) {
    const data::Lane& lane = order->lane(number);
    const auto of_status = [&](data::SampleStatus status) {
      return std::ranges::count_if(lane.samples, [&](int64_t sample) { return ledger.status(sample) == status; });
    };
    lanes.push_back({{"name", lane.name},
                     {"share", shares[static_cast<size_t>(number)]},
                     {"samples", lane.samples.size()},
                     {"used", of_status(data::SampleStatus::kUsed)},
                     {"dropped", of_status(data::SampleStatus::kDropped)},
                     {"epochs", progress.of_lane(number, state.cursor)}});
  }
  json["drawn_from"] = std::move(lanes);
  return json;
}

void RunSetup::restore_ledger(const Config& config) {
  const auto saved = load_ledger(*checkpoints.newest());
  if (!has_other_samples()) {
    read_otherwise = saved.is_object() && !saved.contains("notices");
    order->check(state.cursor, config.data.train.name());
    ledger = data::Ledger::restore(saved, config.data.train.name(), *order, state.cursor);
    return;
  }
  const auto samples = number_behind("", text_in(before_, kSamplesKey));
  if (!samples || !saved.is_object() || saved.value("samples", nlohmann::ordered_json()) != *samples) {
    throw data_error("{}: its ledger is not that of the {} samples that its state names; copy the checkpoint again",
                     checkpoints.newest()->string(), samples.value_or(0));
  }
  if (ranks_.writes()) io::write_file(folder / earlier_ledger(), io::json_text(saved, 2) + "\n");
  state.cursor = order->start();
}

std::string RunSetup::earlier_ledger() const {
  return fmt::format("ledger-to-step-{}.json", state.step);
}

bool RunSetup::has_other_samples() const {
  static constexpr std::string_view kKeys[] = {
      "data.train",           "data.task_shares",    "data.curriculum", "data.packing", "data.pack_max_tokens",
      "data.pack_max_images", "data.pack_max_tiles", kSamplesKey,       kOrderKey};
  return is_among(changes, kKeys);
}

bool RunSetup::has_other_course() const {
  static constexpr std::string_view kKeys[] = {"training.learning_rate",
                                               "training.vision_learning_rate",
                                               "training.projector_learning_rate",
                                               "training.mask_learning_rate",
                                               "training.warmup_ratio",
                                               "training.lr_scheduler",
                                               "training.schedule_from",
                                               kStepsKey};
  return has_other_samples() || is_among(changes, kKeys);
}

void RunSetup::settle_steps(const Config& config) {
  const double usable = data::units_of_epoch(*order, ledger);
  const auto& options = config.training;
  if (!resumed) state.total_steps = train::total_steps(options, usable);
  if (!changes.empty()) {
    const double epochs = data::EpochProgress(ledger, *order).at(state.cursor);
    state.total_steps = total_steps_after(state.step, epochs, options, usable);
    if (*state.total_steps <= state.step) {
      throw usage_error(
          "{}: the run there has done {} steps, and training.{} asks for no more, so there is nothing left for what "
          "has changed; raise it",
          checkpoints.newest()->string(), state.step,
          options.max_steps ? fmt::format("max_steps={}", *options.max_steps)
                            : fmt::format("epochs={}", options.epochs));
    }
    state.changed_at = state.step;
    if (has_other_course()) {
      const bool from_here = config.schedule_from == ScheduleFrom::kChange;
      state.schedule_start = {.step = from_here ? state.step : 0, .skipped_steps = from_here ? state.skipped_steps : 0};
    }
  }
  total_steps = state.total_steps.value_or(train::total_steps(options, static_cast<double>(records->size())));
  schedule.shape = options.lr_scheduler;
  schedule.total_steps = total_steps - state.schedule_start.step;
  schedule.warmup_steps = std::llround(options.warmup_ratio * static_cast<double>(schedule.total_steps));
}

double RunSetup::schedule_factor() const {
  const auto& start = state.schedule_start;
  return schedule.factor((state.step - state.skipped_steps) - (start.step - start.skipped_steps));
}

std::string RunSetup::describe_cut(const Config& config) const {
  const int64_t micro = choices.micro_batch_size;
  if (!choices.costs && order->settings().packs) return fmt::format("in micro-batches of {} samples", micro);
  if (!choices.costs) return fmt::format("in {} micro-batches of {}", config.training.global_batch_size / micro, micro);
  const auto& cut = plan ? plan->cut() : host->cut();
  if (!cut) return "each cut by what its samples take, as the run began";
  return fmt::format("each cut by what its samples take: {:.1f} micro-batches on average, {} to {} in {} drawn steps",
                     cut->passes_per_step, cut->fewest_passes, cut->most_passes, cut->drawn_steps);
}

std::string RunSetup::describe_changes(const Config& config) const {
  if (changes.empty()) return {};
  std::vector<std::string> texts;
  for (const auto& change : changes) texts.push_back(fmt::format("{}: {} → {}", change.key, change.was, change.is));
  std::string text =
      fmt::format("step {}: the run goes on with other settings: {}. The moments of {} trained tensors go on",
                  state.step, fmt::join(texts, "; "), carried_.carried);
  if (carried_.anew > 0) text += fmt::format(", those of {} start at zero", carried_.anew);
  if (has_other_samples()) {
    text += fmt::format("; the data set begins at its start, the ledger of the one before is {}", earlier_ledger());
  }
  if (!tasks_go_on_) text += "; GradNorm's weights start anew";
  return text + fmt::format("; the learning rate goes on at {:.3g}, the run has {} steps in all",
                            learning_rates(config.training, schedule_factor()).language_model, total_steps);
}

void RunSetup::make_plans(const Config& config, at::Device device, planner::Job& job, const planner::Workload& workload,
                          int64_t making_bytes) {
  const auto kept = kept_choices(device);
  if (config.distributed.sharding || ranks_.is_alone()) {
    make_plan(config, device, job, workload, making_bytes, kept);
    return;
  }
  const auto make_plan_with = [&](engine::Sharding sharding) {
    Config settled = config;
    settled.distributed.sharding = job.sharding = sharding;
    make_plan(settled, device, job, workload, making_bytes, kept);
  };
  if (device.is_cpu()) {
    job.sharding = first_that_fits(job, make_plan_with);
    spdlog::info("distributed.sharding: {}", engine::name_of(job.sharding));
    return;
  }
  make_plan(config, device, job, workload, making_bytes, kept);
  const auto own = plan ? plan->sharding() : job.sharding;
  job.sharding = what_saves_most(own);
  if (plan && job.sharding != own) make_plan_with(job.sharding);
}

/// In all ranks; how long steps take on a CPU is not predicted. Throws what refuses the last.
template <class MakePlan>
engine::Sharding RunSetup::first_that_fits(const planner::Job& job, const MakePlan& make_plan) const {
  const auto possible = planner::possible_shardings(job);
  for (const auto sharding : possible) {
    bool fits = true;
    try {
      make_plan(sharding);
    } catch (const UserError& error) {
      if (error.code() != ExitCode::kDoesNotFit || sharding == possible.back()) throw;
      fits = false;
    }
    if (!ranks_.consensus().any(!fits)) return sharding;
  }
  return possible.back();
}

/// Plans of ranks with other samples may differ; what the others chose for want of memory fits here as well.
engine::Sharding RunSetup::what_saves_most(engine::Sharding own) const {
  for (const auto& chosen : ranks_.consensus().each(std::to_string(static_cast<int>(own)))) {
    own = std::max(own, static_cast<engine::Sharding>(number_behind("", chosen).value_or(0)));
  }
  return own;
}

/// What the checkpoint says that the run goes on from.
std::optional<KeptChoices> RunSetup::kept_choices(at::Device device) const {
  const auto& json = device.is_cpu() ? state.host_memory : state.device_memory;
  if (!resumed || json.is_null() || !changes.empty()) return std::nullopt;
  return KeptChoices::of_json(json, device.is_cpu() ? kHostLimitKey : kDeviceLimitKey, checkpoints.newest()->string());
}

void RunSetup::make_plan(const Config& config, at::Device device, const planner::Job& job, planner::Workload workload,
                         int64_t making_bytes, const std::optional<KeptChoices>& kept) {
  workload.nodes = ranks_.machines();
  auto limits = sample_limits(*records, config, workload);
  if (device.is_cpu()) {
    host = std::make_unique<HostRun>(config, std::move(workload), std::move(limits), making_bytes, job, ranks_, folder,
                                     kept);
    state.host_memory = host->fixed().to_json(kHostLimitKey);
    return;
  }
  try {
    const bool cuts_anew = !resumed || !changes.empty();
    plan.emplace(config, device, std::move(workload), std::move(limits), job, ranks_, folder,
                 cuts_anew ? CutOfRun::kFound : CutOfRun::kKept, kept);
    state.device_memory = plan->fixed() ? plan->fixed()->to_json(kDeviceLimitKey) : nullptr;
  } catch (const PlanningFailed& failure) {
    go_on_without_plan(config, device, failure, ranks_, folder);
  }
}

data::Outlines RunSetup::look_at_trained(const Config& config) const {
  data::Outlines outlines;
  ranks_.in_turn([&] {
    outlines = look_at_data(*records, *processor, config, config.data.train.name(), folder / "data_check.jsonl");
  });
  return outlines;
}

void RunSetup::look_at_evaluated(const Config& config, data::Outlines& trained) {
  ranks_.in_turn([&] { evaluated.emplace(config, *processor, folder / "eval_check.jsonl"); });
  if (ranks_.writes()) log_trained_evaluation(config, evaluated->outlines(), trained);
  trained.prints = {};
}

void RunSetup::plan_evaluation(const Config& config) {
  evaluation_plan.batch_size = config.evaluation.batch_size.value_or(1);
  try {
    if (plan) evaluation_plan = plan->plan_evaluation(config, *evaluated);
    if (host) evaluation_plan = host->plan_evaluation(config, *evaluated);
  } catch (const std::exception& error) {
    spdlog::warn("evaluations are not planned ({}); they go in batches of {}", first_line(error.what()),
                 evaluation_plan.batch_size);
    return;
  }
  if (!plan && !host) return;
  spdlog::info("evaluations: {} in batches of {}, planned in {:.1f} s{}",
               counted(evaluated->records()->size(), "sample"), evaluation_plan.batch_size, evaluation_plan.seconds,
               evaluation_plan.fits ? "" : "; the largest may not fit, and is cut or left out then");
}

void RunSetup::load(const Config& config, at::Device device, const planner::Job& job) {
  const auto newest = checkpoints.newest();
  if (base) {
    base->put_chat_template(processor->chat_template().source().jinja);
    base->put_end_token(processor->end_of_turn_id());
    base->put_file(kVolumeSettingsFile, volume_settings_text(config.data.volume));
    base->put_file(kMediaSettingsFile, media_settings_text(config.data));
    const auto saved = models::processor_files_to_save(
        config.model.path, processor_settings(config.data, config.model.adapter), has_videos_);
    for (const auto& [name, content] : saved.files) base->put_file(name, content);
    for (const auto& setting : saved.not_saved) {
      spdlog::warn(
          "{}; set it in the processor yourself where transformers runs the saved model (vlmtrain keeps it in "
          "{})",
          setting, kMediaSettingsFile);
    }
  }
  model = load_model(config, job, device, newest, /*with_values=*/!is_rehearsal());
  std::optional<models::BaseWeights> saved;  // the checkpoint, where more than the model's weights is taken of it
  if (base && newest && !(changes.empty() && state.settled_parts.empty())) {
    const bool has_lora = model->parameters().lora().has_value();
    saved.emplace(has_lora ? std::filesystem::path(config.model.path) : *newest, has_lora ? *newest : "");
  }
  if (base && newest) {
    state.settled_parts =
        settle_frozen_parts(config, before_, state.settled_parts, *newest, saved ? &*saved : nullptr, *base, *model);
  }
  if (plan || host) {
    choices = plan ? plan->choices() : host->fixed().choices;
  } else {
    choices = cautious_choices(config, model->vision_blocks(), model->language_blocks());
  }
  choices.recompute = models::within(choices.recompute, {model->vision_blocks(), model->language_blocks()});
  training = std::make_unique<engine::Training>(*model, job.optimizer,
                                                engine::make_objective(job.objective)->gradient_groups(), job.shard());
  if (!newest) return;
  if (changes.empty()) {
    load_optimizer(*newest, training->optimizer);
  } else {
    carried_ = carry_optimizer(*newest, *saved, model->parameters(), training->optimizer);
    tasks_go_on_ = tasks->knows(has_other_samples() ? nlohmann::ordered_json() : state.task_balance);
  }
  if (tasks_go_on_) tasks->restore(state.task_balance, newest->string());
}

}  // namespace vlmtrain::train

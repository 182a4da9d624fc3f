#include "vlmtrain/train/trainer.h"

#include <ATen/Context.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <fstream>
#include <limits>
#include <memory>
#include <optional>

#include "train/pending_step.h"
#include "train/run_plan.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/rng.h"
#include "vlmtrain/data/loader.h"
#include "vlmtrain/engine/step.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/models/checkpoint.h"
#include "vlmtrain/planner/virtual_card.h"
#include "vlmtrain/report/metrics.h"
#include "vlmtrain/report/progress.h"
#include "vlmtrain/train/planning.h"
#include "vlmtrain/train/run_checkpoint.h"
#include "vlmtrain/train/setup.h"
#include "vlmtrain/train/stop_request.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::train {

namespace {

using Clock = std::chrono::steady_clock;

/// Whether the run is on a virtual card: all is done but arithmetic, so there are no values and nothing to save.
bool is_rehearsal() {
  return planner::on_virtual_card();
}

/// A rehearsal keeps away from the run's own results.
std::filesystem::path run_folder(const Config& config) {
  const std::filesystem::path folder = config.output.dir;
  return is_rehearsal() ? folder / fmt::format("virtual-{}", vgpu::attached()->card()) : folder;
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One run, from its data set to its last checkpoint.
class Run {
 public:
  Run(const Config& config, at::Device device, bool quiet)
      : config_(config),
        device_(device),
        dir_(run_folder(config)),
        records_(read_records(config.data.train)),
        processor_(models::load_processor(config.model.path, processor_settings(config.data, config.data.train))),
        checkpoints_(dir_, config.output.keep),
        fingerprint_(run_fingerprint(config, static_cast<int64_t>(records_.size()))),
        ledger_(config.data.train, static_cast<int64_t>(records_.size())) {
    schedule_.total_steps = total_steps(config.training, static_cast<int64_t>(records_.size()));
    schedule_.shape = config.training.lr_scheduler;
    schedule_.warmup_steps = std::llround(config.training.warmup_ratio * static_cast<double>(schedule_.total_steps));
    if (!device.is_cpu()) plan_.emplace(config, device, records_, *processor_, dir_);
    resume_or_start();
    log_run();
    progress_ = std::make_unique<report::Progress>(schedule_.total_steps, step_, quiet);
  }

  TrainingSummary train() {
    try {
      loop();
    } catch (...) {
      write_ledger_if_possible();
      throw;
    }
    write_ledger();
    if (plan_) plan_->compare(most_, step_);
    return {.stopped = stop_signal() != 0 && step_ < schedule_.total_steps,
            .steps = step_,
            .last_loss = last_loss_,
            .checkpoint = checkpoints_.newest(),
            .reserved_peak_bytes = most_.reserved_peak_bytes,
            .planned_peak_bytes = plan_ ? std::optional{plan_->reserved_peak_bytes()} : std::nullopt};
  }

 private:
  void resume_or_start() {
    const auto newest = checkpoints_.newest();
    if (newest && config_.resume == Resume::kNever) {
      throw usage_error("output.dir: {} holds a run already ({}) and training.resume is never; choose another folder",
                        dir_.string(), newest->filename().string());
    }
    std::optional<RunState> state;
    if (newest) state = load_run_state(*newest, fingerprint_);
    // A virtual card holds no values.
    model_ = load_model(config_, device_, newest, /*with_values=*/!is_rehearsal());
    freeze(*model_, config_.model);
    choices_ =
        plan_ ? plan_->choices() : choices_without_plan(config_, model_->vision_blocks(), model_->language_blocks());
    model_->set_recompute(choices_.recompute);
    model_->set_vision_tiles_per_pass(choices_.vision_tiles_per_pass);
    optimizer_ = std::make_unique<engine::AdamW>(model_->parameters(), adamw_settings(config_.training));
    if (state) {
      load_optimizer(*newest, *optimizer_);
      step_ = state->step;
      cursor_ = state->cursor;
      ledger_ = data::Ledger::restore(load_ledger(*newest), config_.data.train, static_cast<int64_t>(records_.size()),
                                      cursor_, seed());
      spdlog::info("going on after step {} from {}", step_, newest->string());
    }
    saved_step_ = newest ? step_ : -1;
  }

  void log_run() const {
    const auto& training = config_.training;
    const int64_t micro = choices_.micro_batch_size;
    spdlog::info("model {}: {:.1f} million parameters, {:.1f} million trained, in {} on {}", config_.model.path,
                 static_cast<double>(model_->parameters().total_elements()) / 1e6,
                 static_cast<double>(optimizer_->trained_elements()) / 1e6, engine::name_of(training.precision),
                 device_.str());
    spdlog::info("data {}: {} samples; {} steps of {} samples, in {} micro-batches of {}", config_.data.train,
                 records_.size(), schedule_.total_steps, training.global_batch_size, training.global_batch_size / micro,
                 micro);
  }

  void loop() {
    const engine::StepSettings settings{
        .device = device_, .micro_batch_size = choices_.micro_batch_size, .loss_chunk_rows = choices_.loss_chunk_rows};
    data::Loader loader(records_, *processor_, loader_settings(config_), cursor_, ledger_);
    report::StepLines metrics_lines(dir_ / "metrics.jsonl", step_);
    std::optional<report::StepLines> sample_lines;
    if (config_.output.log_samples) sample_lines.emplace(dir_ / "samples.jsonl", step_);
    std::optional<PendingStep> pending;

    while (step_ < schedule_.total_steps && stop_signal() == 0) {
      // 1. The samples of this step, exactly the global batch.
      const auto start = Clock::now();
      const data::GlobalBatch batch = loader.next();
      // 2. Forward and backward passes over its micro-batches, then the optimizer.
      at::Generator generator = at::globalContext().defaultGenerator(device_);
      generator.set_current_seed(stream_seed(seed(), "step", {static_cast<uint64_t>(step_)}));
      memory::reset_peaks(device_);
      const engine::LearningRates rates = learning_rates(config_.training, schedule_.factor(step_));
      const auto result = engine::optimizer_step(*model_, *optimizer_, batch.samples, rates, settings);
      ++step_;
      cursor_ = batch.next;
      // 3. Report: the numbers of the step before, which have reached the host by now.
      PendingStep current(result, batch, device_);
      current.metrics.step = step_;
      current.metrics.epoch = epochs_done();
      current.metrics.learning_rate = rates.language_model;
      if (plan_) current.metrics.predicted_peak_bytes = plan_->reserved_peak_bytes();
      if (sample_lines) sample_lines->append(sample_ids_line(step_, batch));
      if (pending) finish(*pending, metrics_lines);
      current.metrics.step_seconds = seconds_since(start);
      pending.emplace(std::move(current));
      if (device_.is_cpu() || is_save_step()) finish_and_forget(pending, metrics_lines);
      // 4. Save.
      if (is_save_step()) save();
    }
    finish_and_forget(pending, metrics_lines);
    progress_->clear();
    if (saved_step_ != step_) save();
    if (stop_signal() != 0) spdlog::warn("stopped by signal {} after step {}", stop_signal(), step_);
  }

  void finish_and_forget(std::optional<PendingStep>& pending, report::StepLines& lines) {
    if (pending) finish(*pending, lines);
    pending.reset();
  }

  void finish(PendingStep& step, report::StepLines& lines) {
    step.read();
    most_.allocated_peak_bytes = std::max(most_.allocated_peak_bytes, step.metrics.allocated_peak_bytes);
    most_.reserved_peak_bytes = std::max(most_.reserved_peak_bytes, step.metrics.reserved_peak_bytes);
    if (is_rehearsal()) step.metrics.loss = step.metrics.grad_norm = std::numeric_limits<double>::quiet_NaN();
    lines.append(step.metrics.to_json_line());
    progress_->show(step.metrics);
    if (is_rehearsal()) return;
    last_loss_ = step.metrics.loss;
    if (!std::isfinite(step.metrics.loss) || !std::isfinite(step.metrics.grad_norm)) {
      throw run_error(
          "step {}: loss {} with gradient norm {}; the last checkpoint is whole. Its samples: {}. Lower "
          "training.learning_rate, or look at these samples",
          step.metrics.step, step.metrics.loss, step.metrics.grad_norm, step.sample_ids);
    }
  }

  bool is_save_step() const { return config_.output.save_steps > 0 && step_ % config_.output.save_steps == 0; }

  void save() {
    if (is_rehearsal()) return;
    checkpoints_.save({step_, cursor_, fingerprint_}, *model_, *optimizer_, ledger_, config_.model.path);
    saved_step_ = step_;
    write_ledger();
  }

  void write_ledger() const { io::write_file(dir_ / "ledger.json", ledger_.to_json().dump(2) + "\n"); }

  // What stopped the run, such as a full disk, may also be in the way here; it is the error to report.
  void write_ledger_if_possible() const {
    try {
      write_ledger();
    } catch (const std::exception& error) {
      spdlog::warn("the ledger was not written: {}", error.what());
    }
  }

  double epochs_done() const {
    return static_cast<double>(cursor_.epoch) +
           static_cast<double>(cursor_.position) / static_cast<double>(records_.size());
  }

  uint64_t seed() const { return static_cast<uint64_t>(config_.training.seed); }

  const Config& config_;
  at::Device device_;
  std::filesystem::path dir_;
  std::vector<io::Record> records_;
  std::unique_ptr<models::Processor> processor_;
  RunCheckpoints checkpoints_;
  nlohmann::ordered_json fingerprint_;
  data::Ledger ledger_;
  engine::Schedule schedule_;
  std::unique_ptr<models::VisionLanguageModel> model_;
  std::unique_ptr<engine::AdamW> optimizer_;
  std::unique_ptr<report::Progress> progress_;
  int64_t step_ = 0;  // done
  int64_t saved_step_ = -1;
  data::Cursor cursor_;
  std::optional<RunPlan> plan_;  // on a GPU
  planner::Choices choices_;
  memory::DeviceMemory most_;  // over all steps
  std::optional<double> last_loss_;
};

void create_folder(const std::filesystem::path& folder) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw run_error("output.dir: the folder {} cannot be made: {}; choose another, or make room for it",
                    folder.string(), error.message());
  }
}

}  // namespace

std::string TrainingSummary::to_json() const {
  nlohmann::ordered_json json{{"stopped", stopped}, {"steps", steps}, {"last_loss", nullptr}, {"checkpoint", nullptr}};
  if (last_loss) json["last_loss"] = *last_loss;
  if (checkpoint) json["checkpoint"] = checkpoint->string();
  json["reserved_peak_bytes"] = reserved_peak_bytes;
  json["planned_peak_bytes"] = nullptr;
  if (planned_peak_bytes) json["planned_peak_bytes"] = *planned_peak_bytes;
  return json.dump();
}

TrainingSummary train(const Config& config, const std::string& resolved_yaml, at::Device device, bool quiet) {
  check_required(config);
  micro_batch_size(config.training);
  create_folder(run_folder(config));
  Run run(config, device, quiet);
  io::write_file(run_folder(config) / "config.yaml", resolved_yaml);
  return run.train();
}

}  // namespace vlmtrain::train

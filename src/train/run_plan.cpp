#include "train/run_plan.h"

#include "train/evaluation_planning.h"
#include "train/plan_or_split.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/vgpu/counters.h"

namespace vlmtrain::train {

namespace {

/// What the run itself is to blame for is thrown as it is.
planner::Plan plan_or_say_why(const planner::PlanRequest& request) {
  try {
    return planner::make_plan(request);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kFailed) throw;
    throw PlanningFailed(error.what());
  } catch (const std::exception& error) {
    throw PlanningFailed(error.what());
  }
}

/// Nothing on a virtual card, of which there is nothing to learn.
std::optional<PastRuns> past_runs_on(const planner::TargetCard& card) {
  if (planner::on_virtual_card()) return std::nullopt;
  return past_runs(past_runs_file(), place_of_card(card.device_name));
}

/// With what was kept for all that changes no cut, if that fits: a card that has some MB less than when the run began
/// is no reason to recompute other blocks.
planner::Plan plan_as_kept(const planner::PlanRequest& request, const KeptChoices& kept) {
  const auto limit =
      planner::limit_of(request.card, request.mode, request.limit_gigabytes, request.workload.world_size);
  if (limit.limit_bytes < kept.limit_bytes && !request.fixed.micro_batch_size) {
    spdlog::warn(
        "device memory: the run was planned for {:.2f} GB, and the card has {:.2f} GB for it now; it goes on with the "
        "same micro-batches, and cuts those that do not fit",
        in_gigabytes(kept.limit_bytes), in_gigabytes(limit.limit_bytes));
  }
  planner::PlanRequest as_kept = request;
  as_kept.fixed = fixed_as_kept(request.fixed, kept.choices);
  as_kept.fixed.micro_batch_size = request.fixed.micro_batch_size;
  as_kept.with_remedies = false;
  planner::Plan plan = plan_or_say_why(as_kept);
  plan.fixed = request.fixed;
  return plan.fits ? plan : plan_or_say_why(request);
}

}  // namespace

RunPlan::RunPlan(const Config& config, at::Device device, planner::Workload workload,
                 std::vector<planner::SampleLimit> limits, const planner::Job& job, const RunRanks& ranks,
                 std::filesystem::path run_folder, CutOfRun cut, const std::optional<KeptChoices>& kept)
    : device_(device), run_folder_(std::move(run_folder)), writes_(ranks.writes()) {
  auto request = plan_request(config, job, planner::card_of_device(memory::describe(device)), std::move(workload));
  request.sample_limits = std::move(limits);
  past_ = past_runs_on(request.card);
  if (past_) learn(request.card, *past_);
  request.with_cut = cut == CutOfRun::kFound;
  const auto make = [&kept](const planner::PlanRequest& asked) {
    return kept ? plan_as_kept(asked, *kept) : plan_or_say_why(asked);
  };
  auto [plan, may_not_fit] = plan_or_split(std::move(request), config.memory.allow_splits, make);
  plan_ = std::move(plan);
  if (past_) learn(plan_, *past_);
  if (!plan_.fits) throw UserError(ExitCode::kDoesNotFit, report::plan_refusal(plan_));
  if (may_not_fit) {
    spdlog::info("micro-batches of {} do not fit with the largest samples; those that do not are cut", *may_not_fit);
    plan_.chosen.choices.micro_batch_size = *may_not_fit;
    may_not_fit_ = true;
  }
  choices_ = plan_.chosen.choices;
  if (plan_.cut) fixed_ = {.choices = choices_, .limit_bytes = plan_.limit.limit_bytes};
  if (plan_.cut) fixed_->choices.costs = plan_.cut->table;
  if (kept && kept->choices.costs && !config.training.micro_batch_size) fixed_ = kept;
  if (fixed_) choices_.costs = fixed_->choices.costs;
  write();
  spdlog::info("plan: {}; made in {:.1f} s", report::plan_headline(plan_), plan_.effort.seconds);
  memory::set_expandable_segments(choices().expandable_segments);
  if (may_not_fit_ && !config.memory.twin) {
    // Nothing else keeps its steps out of the margin, which is for what no plan can know.
    memory::limit_reserved_bytes(device, plan_.limit.limit_bytes);
  } else if (config.memory.limit_gb) {
    memory::limit_reserved_bytes(device, plan_.limit.card_bytes - plan_.limit.context_bytes);
  }
}

planner::EvaluationPlan RunPlan::plan_evaluation(const Config& config, const EvaluationSet& set) {
  auto request = evaluation_request(config, set, plan_.job);
  request.training = choices();
  for (int64_t i = 0; i < 2 * choices().micro_batch_size; ++i) {
    const auto& shapes = plan_.worst.shapes;
    planner::add_sample(request.training_samples, shapes[std::min(static_cast<size_t>(i), shapes.size() - 1)]);
  }
  request.limit_bytes = plan_.limit.limit_bytes;
  request.wanted_bytes = std::min(peaks().reserved_bytes, plan_.limit.limit_bytes);
  evaluation_ = planner::plan_evaluation(request, planner::rehearsal_card(plan_.card));
  write();
  return *evaluation_;
}

TwinSettings RunPlan::twin_settings() const {
  return {.job = plan_.job,
          .choices = choices(),
          .card = planner::rehearsal_card(plan_.card),
          .limit_bytes = plan_.limit.limit_bytes,
          .waits = planner::on_virtual_card() && !vgpu::attached()->takes_time()};
}

void RunPlan::compare(const memory::DeviceMemory& measured, int64_t device_used_bytes, int64_t steps,
                      const TwinSummary* twin) const {
  const auto planned = plan_.peaks();
  const int64_t retries = memory::allocation_retries(device_);
  spdlog::info(
      "device memory at most: {:.2f} GB allocated (planned: {:.2f}), {:.2f} GB reserved (planned: "
      "{:.2f}); {} allocations had to be tried again",
      in_gigabytes(measured.allocated_peak_bytes), in_gigabytes(planned.allocated_bytes),
      in_gigabytes(measured.reserved_peak_bytes), in_gigabytes(planned.reserved_bytes), retries);
  nlohmann::ordered_json json{{"allocated_peak_bytes", measured.allocated_peak_bytes},
                              {"reserved_peak_bytes", measured.reserved_peak_bytes},
                              {"allocation_retries", retries},
                              {"device_used_bytes", device_used_bytes},
                              {"steps", steps}};
  if (twin != nullptr) {
    spdlog::info(
        "twin: {} of {} steps foreseen, {} cut before they failed; reserved memory within {:.2f} % of what it foresaw; "
        "{:.3f} CPU seconds a step",
        twin->steps, twin->steps + twin->late_steps, twin->cut_steps, 100 * twin->worst_error,
        twin->cpu_seconds / static_cast<double>(std::max<int64_t>(1, twin->steps)));
    json["twin"] = {{"foreseen_steps", twin->steps},         {"late_steps", twin->late_steps},
                    {"cut_steps", twin->cut_steps},          {"hopeless_steps", twin->hopeless_steps},
                    {"worst_error", twin->worst_error},      {"cpu_seconds", twin->cpu_seconds},
                    {"waited_seconds", twin->waited_seconds}};
  }
  write(json);
}

void RunPlan::remember(int64_t beside_bytes, const memory::DeviceMemory& measured, const StepTimes& times) const {
  if (planner::on_virtual_card()) return;
  const auto file = past_runs_file();
  if (file.empty()) return;
  constexpr int64_t kMostContexts = 2;  // more than that is other processes' too
  PastRuns newest{.runs = 1};
  if (plan_.card.others_bytes == 0 && beside_bytes > 0 &&
      beside_bytes <= kMostContexts * plan_.card.gpu->context_bytes) {
    newest.context_bytes = beside_bytes;
  }
  if (measured.reserved_peak_bytes > 0) {
    newest.peak_ratio = static_cast<double>(measured.reserved_peak_bytes) / static_cast<double>(peaks().reserved_bytes);
  }
  try {
    newest.step_time_ratio = times.ratio(plan_.job, choices(), planner::rehearsal_card(plan_.card));
  } catch (const std::exception& error) {
    spdlog::info("what steps took is not kept for later plans: {}", error.what());
  }
  remember_run(file, place_of_card(plan_.card.device_name), newest);
}

void RunPlan::write(const nlohmann::ordered_json& measured) const {
  if (!writes_) return;
  nlohmann::ordered_json json = plan_.to_json();
  if (evaluation_) json["evaluation"] = evaluation_->to_json();
  if (past_) json["past_runs"] = past_->to_json();
  if (!measured.is_null()) json["measured"] = measured;
  io::write_file(run_folder_ / "plan.json", io::json_text(json, 2) + "\n");
}

void go_on_without_plan(const Config& config, at::Device device, const PlanningFailed& failure, const RunRanks& ranks,
                        const std::filesystem::path& run_folder) {
  spdlog::warn(
      "the run has no plan, since planning failed: {}; it goes on with what takes least memory: single samples, "
      "everything recomputed, but for what the configuration fixes (memory.recompute, training.micro_batch_size)",
      failure.what());
  std::error_code ignored;
  if (ranks.writes()) std::filesystem::remove(run_folder / "plan.json", ignored);  // of the run before
  memory::set_expandable_segments(config.memory.expandable_segments);
  if (!config.memory.limit_gb) return;
  const auto card = planner::card_of_device(memory::describe(device));
  const auto limit = planner::limit_of(card, config.memory.mode, config.memory.limit_gb, ranks.world_size());
  memory::limit_reserved_bytes(device, limit.card_bytes - limit.context_bytes);
}

}  // namespace vlmtrain::train

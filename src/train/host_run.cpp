#include "train/host_run.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "train/evaluation_planning.h"
#include "train/plan_or_split.h"
#include "train/row_group_limit.h"
#include "vlmtrain/base/bytes.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/number_words.h"
#include "vlmtrain/data/shape.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/io/row_group_memory.h"
#include "vlmtrain/memory/host.h"
#include "vlmtrain/memory/host_malloc.h"
#include "vlmtrain/memory/large_blocks.h"
#include "vlmtrain/train/past_runs.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

using planner::HostLimit;
using planner::HostPlan;
using planner::HostPlanRequest;

std::string gb(int64_t bytes) {
  return fmt::format("{:.2f} GB", in_gigabytes(bytes));
}

std::string words_of(const planner::Choices& choices, const HostPlan& plan) {
  std::string text =
      choices.costs ? "micro-batches cut by memory" : fmt::format("micro-batches of {}", choices.micro_batch_size);
  const auto& blocks = choices.recompute;
  if (blocks.vision > 0)
    text += fmt::format(", {} of {} vision blocks recomputed", blocks.vision, plan.detail.vision_blocks);
  if (blocks.language > 0) {
    text += fmt::format(", {} of {} language blocks recomputed", blocks.language, plan.detail.language_blocks);
    if (blocks.language_attention_kept > 0) {
      text += fmt::format(" (attention kept in {})", blocks.language_attention_kept);
    }
  }
  if (choices.vision_tiles_per_pass > 0) text += fmt::format(", {} tiles a vision pass", choices.vision_tiles_per_pass);
  return text;
}

/// To be put behind a command.
std::string settings_of(const planner::Choices& choices) {
  return fmt::format(
      "training.micro_batch_size={} memory.recompute={} memory.vision_tiles_per_pass={} memory.loss_chunk_rows={}",
      choices.micro_batch_size, planner::RecomputeOption::of(choices.recompute).text, choices.vision_tiles_per_pass,
      choices.loss_chunk_rows);
}

std::string where_from(const HostLimit& limit) {
  return fmt::format("{} ({}), of which {:.0f} % are kept free", gb(limit.room.bytes), limit.room.bound,
                     limit.margin_percent);
}

/// Of two runs of the same thing the resident sets differ by some pages; their limits should not.
int64_t rounded_up(int64_t bytes) {
  constexpr int64_t kStep = int64_t{32} << 20;
  return (bytes + kStep - 1) / kStep * kStep;
}

/// Packs of small samples have more than others.
int64_t most_samples_of_step(const planner::Workload& workload) {
  return workload.packed ? 2 * workload.samples_per_rank() : workload.samples_per_rank();
}

/// "sample s0 of 20,011 tokens and 2 images".
std::string words_of(const planner::SampleBatch& worst) {
  const data::SampleShape& shape = worst.shapes.front();
  std::string text = fmt::format("sample {} of {}", worst.first_id, counted(shape.tokens, "token"));
  if (shape.images > 0) text += " and " + data::media_words(shape);
  return text;
}

std::string refusal(const HostPlan& plan) {
  const int64_t enough = std::llround(static_cast<double>(plan.total_bytes()) / (1 - plan.limit.margin_percent / 100));
  std::string text = fmt::format(
      "model.path: {} does not fit in host memory: a step takes at least {} ({}, with {}; tensors of {}, {} beside "
      "them), and this process may have {}",
      plan.model, gb(plan.total_bytes()), words_of(plan.choices, plan), words_of(plan.worst), gb(plan.peak_bytes),
      gb(plan.total_bytes() - plan.peak_bytes), where_from(plan.limit));
  if (const std::string remedy = row_group_remedy(); !remedy.empty()) text += "; " + remedy;
  if (plan.suggestions.empty())
    return text + fmt::format("; ask for {} of memory, or take a smaller model", gb(enough));
  text += "; it fits with";
  for (const auto& suggestion : plan.suggestions) text += "\n  " + suggestion.text();
  return text + fmt::format("\nor where this process may have {}", gb(enough));
}

memory::HostRoom part_of(memory::HostRoom room, int64_t ranks) {
  if (ranks == 1) return room;
  const int64_t own = memory::host_bytes();
  return {.bytes = own + (room.bytes - own) / ranks, .bound = fmt::format("{}, shared by {} ranks", room.bound, ranks)};
}

}  // namespace

HostRun::HostRun(const Config& config, planner::Workload workload, std::vector<planner::SampleLimit> limits,
                 int64_t making_bytes, const planner::Job& job, const RunRanks& ranks, std::filesystem::path run_folder,
                 const std::optional<KeptChoices>& kept)
    : run_folder_(std::move(run_folder)), writes_(ranks.writes()) {
  memory::give_back_large_blocks();
  memory::keep_large_blocks();
  const planner::HostNeeds needs{
      .process_bytes = rounded_up(memory::host_bytes() + io::row_group_memory().bytes_to_come()),
      .sample_bytes = largest_sample(workload.candidates),
      .making_bytes = making_bytes,
      .samples_of_step = most_samples_of_step(workload),
      .world_size = ranks.world_size(),
      .threads = config.data.num_workers};
  const memory::HostRoom room = part_of(memory::host_room(), ranks.on_this_machine());
  const HostLimit limit = planner::host_limit(room, config.memory.limit_gb, config.memory.mode, needs);
  bytes_ahead_ = limit.ahead_bytes;

  const planner::PlanRequest asked = plan_request(config, job, /*card=*/{}, std::move(workload));
  const HostPlanRequest request{.model = asked.model,
                                .job = asked.job,
                                .mode = asked.mode,
                                .room = room,
                                .limit_gigabytes = asked.limit_gigabytes,
                                .needs = needs,
                                .workload = asked.workload,
                                .fixed = asked.fixed,
                                .largest_micro_batch = largest_micro_batch(config, asked.workload.world_size),
                                .sample_limits = std::move(limits)};
  make_plan(config, request, limit, kept);
  if (kept) go_on_with(request, config.memory.allow_splits, *kept);
  if (!plan_) return;
  write();
  if (const auto past = past_runs(past_runs_file(), place_of_processor())) {
    spdlog::info("host memory: {}", past->words());
  }
  spdlog::info("host memory: planned {} of {}; {}; made in {:.1f} s", gb(plan_->total_bytes()),
               where_from(plan_->limit), words_of(fixed_.choices, *plan_), plan_->effort.seconds);
}

void HostRun::make_plan(const Config& config, HostPlanRequest request, const HostLimit& limit,
                        const std::optional<KeptChoices>& kept) {
  fixed_.limit_bytes = guard_bytes_ = limit.tensor_bytes;
  const bool is_cut_by_memory = !request.fixed.micro_batch_size;
  if (kept) request.fixed = fixed_as_kept(request.fixed, kept->choices);
  request.with_remedies = request.with_cut = !kept;
  try {
    auto [plan, may_not_fit] = plan_or_split(std::move(request), config.memory.allow_splits, planner::make_host_plan);
    if (!plan.fits && !kept) throw UserError(ExitCode::kDoesNotFit, refusal(plan));
    if (may_not_fit) plan.choices.micro_batch_size = *may_not_fit;
    fixed_.choices = plan.choices;
    if (plan.cut) fixed_.choices.costs = plan.cut->table;
    cut_ = plan.cut;
    if (kept && is_cut_by_memory) fixed_.choices.costs = kept->choices.costs;
    plan_ = std::move(plan);
    // What malloc keeps is beside the tensors, which alone are counted.
    guard_bytes_ -= std::min(plan_->kept_bytes, guard_bytes_ / 2);
  } catch (const UserError&) {
    throw;
  } catch (const std::exception& error) {
    spdlog::warn(
        "host memory: no plan could be made ({}); the run goes on with what takes least memory: single samples, "
        "everything recomputed, but for what the configuration fixes; and what goes over {} is cut",
        first_line(error.what()), gb(limit.room.bytes));
    constexpr int64_t kAllBlocks = 1'000'000;
    fixed_.choices = kept ? kept->choices : cautious_choices(config, kAllBlocks, kAllBlocks);
  }
}

/// What there is now counts only where it is less than the run was planned for.
void HostRun::go_on_with(const HostPlanRequest& asked, bool allow_splits, const KeptChoices& kept) {
  const int64_t now = fixed_.limit_bytes;
  fixed_.limit_bytes = kept.limit_bytes;
  guard_bytes_ = std::min(guard_bytes_, kept.limit_bytes);
  if (now >= kept.limit_bytes) return;
  const std::string lack = plan_ ? fmt::format("this process may have {}", where_from(plan_->limit))
                                 : fmt::format("its tensors may have {}", gb(now));
  if (plan_ && plan_->needed_bytes() > now && !allow_splits) {
    const HostPlan smaller = planner::make_host_plan(asked);
    if (!smaller.fits) throw UserError(ExitCode::kDoesNotFit, refusal(smaller));
    throw UserError(
        ExitCode::kDoesNotFit,
        fmt::format("host memory: the run goes in {}, which takes {} in all, and {}; give it as much again, "
                    "or let it go on in smaller pieces, as far as rounding not the same run: {}",
                    words_of(fixed_.choices, *plan_), gb(plan_->total_bytes()), lack, settings_of(smaller.choices)));
  }
  spdlog::warn(
      "host memory: the run was planned for tensors of {}, and {}, so {} of them; it goes on with the same "
      "micro-batches, and cuts a step that does not fit",
      gb(kept.limit_bytes), lack, gb(now));
}

planner::EvaluationPlan HostRun::plan_evaluation(const Config& config, const EvaluationSet& set) {
  planner::EvaluationPlan plan{.batch_size = config.evaluation.batch_size.value_or(1)};
  if (plan_) {
    auto request = evaluation_request(config, set, plan_->job);
    request.largest_batch = kBatchOnHost;
    request.training = fixed_.choices;
    for (int64_t i = 0; i < fixed_.choices.micro_batch_size; ++i) {
      const auto& shapes = plan_->worst.shapes;
      planner::add_sample(request.training_samples, shapes[std::min(static_cast<size_t>(i), shapes.size() - 1)]);
    }
    const int64_t sample_bytes = largest_sample(request.candidates);
    evaluation_samples_bytes_ = config.data.num_workers * (sample_bytes + set.making_bytes()) +
                                2 * request.batch_size.value_or(kBatchOnHost) * sample_bytes;
    request.wanted_bytes = request.limit_bytes = guard_bytes_ - evaluation_samples_bytes_;
    plan = planner::plan_evaluation_on_host(request);
    evaluation_samples_bytes_ =
        config.data.num_workers * (sample_bytes + set.making_bytes()) + 2 * plan.batch_size * sample_bytes;
    evaluation_bytes_ahead_ = std::max<int64_t>(1, plan.batch_size * sample_bytes);
    evaluation_ = plan;
    write();
  }
  return plan;
}

std::unique_ptr<memory::HostBudget::Limit> HostRun::guard_of_evaluation() {
  return std::make_unique<memory::HostBudget::Limit>(budget_,
                                                     std::max<int64_t>(0, guard_bytes_ - evaluation_samples_bytes_));
}

std::unique_ptr<memory::HostBudget::Limit> HostRun::guard() {
  return std::make_unique<memory::HostBudget::Limit>(budget_, guard_bytes_);
}

int64_t HostRun::left_bytes() const {
  if (!plan_) return 0;
  return std::max<int64_t>(0, plan_->limit.room.bytes - plan_->limit.margin_bytes - plan_->total_bytes());
}

void HostRun::compare(int64_t steps) const {
  const int64_t resident = memory::host_peak_bytes();
  std::string planned_tensors, planned_total;
  if (plan_) {
    planned_tensors = fmt::format(" (planned for the worst batch: {})", gb(plan_->peak_bytes));
    planned_total = fmt::format(" (planned: {}{})", gb(plan_->total_bytes()),
                                copies_bytes_ > 0 ? ", and copies of checkpoints of " + gb(copies_bytes_) : "");
  }
  spdlog::info("host memory at most: tensors of {}{}, {} resident{}; {} allocations would have gone over the limit",
               gb(budget_.peak_bytes()), planned_tensors, gb(resident), planned_total, budget_.refusals());
  write({{"allocated_peak_bytes", budget_.peak_bytes()},
         {"resident_peak_bytes", resident},
         {"checkpoint_copies_bytes", copies_bytes_},
         {"refused_allocations", budget_.refusals()},
         {"steps", steps}});
  if (!plan_ || !writes_ || steps == 0) return;
  const double ratio = static_cast<double>(resident) / static_cast<double>(plan_->total_bytes() + copies_bytes_);
  remember_run(past_runs_file(), place_of_processor(), {.runs = 1, .peak_ratio = ratio});
}

void HostRun::write(const nlohmann::ordered_json& measured) const {
  if (!plan_ || !writes_) return;
  nlohmann::ordered_json json = plan_->to_json();
  if (evaluation_) json["evaluation"] = evaluation_->to_json();
  if (!measured.is_null()) json["measured"] = measured;
  io::write_file(run_folder_ / "plan.json", io::json_text(json, 2) + "\n");
}

}  // namespace vlmtrain::train

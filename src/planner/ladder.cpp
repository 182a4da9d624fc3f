#include "vlmtrain/planner/ladder.h"

#include <fmt/format.h>

#include <utility>

#include "planner/job_change.h"
#include "planner/plan_json.h"
#include "planner/rehearsed_options.h"
#include "vlmtrain/base/error.h"

namespace vlmtrain::planner {

namespace {

/// A job on its way up: each step changes what the last one left.
struct Climb {
  PlanRequest request;
  bool recomputes = false;
  std::vector<std::string> arguments() const {
    const Job& job = request.job;
    return {"training.precision=" + engine::name_of(job.precision),
            fmt::format("memory.recompute={}", recomputes ? "auto" : "none"),
            "training.optimizer_states=" + engine::name_of(job.optimizer.states),
            "--finetune",
            job.lora ? "lora" : "full",
            "model.quantization=" + nn::name_of(job.quantization)};
  }
};

/// Why a step up is none, empty where it is one.
using Step = std::string (*)(Climb& climb, const PlanRequest& asked);

std::string begin(Climb& climb, const PlanRequest& /*asked*/) {
  Job& job = climb.request.job;
  job = with_precision(std::move(job), engine::Precision::kFp32);
  job.optimizer.states = engine::OptimizerStates::kFp32;
  job.lora.reset();
  job.quantization = nn::Quantization::kNone;
  climb.request.fixed.recompute.text = "none";
  return {};
}

std::string halve(Climb& climb, const PlanRequest& asked) {
  const bool has_bf16 = computes_in(*asked.card.gpu, engine::Precision::kBf16);
  Job& job = climb.request.job;
  job = with_precision(std::move(job), has_bf16 ? engine::Precision::kBf16 : engine::Precision::kFp16);
  return {};
}

std::string recompute(Climb& climb, const PlanRequest& /*asked*/) {
  climb.recomputes = true;
  climb.request.fixed.recompute = {};
  return {};
}

std::string compress_states(Climb& climb, const PlanRequest& /*asked*/) {
  climb.request.job.optimizer.states = engine::OptimizerStates::k8Bit;
  return {};
}

std::string adapt(Climb& climb, const PlanRequest& asked) {
  if (asked.job.lora) {
    climb.request.job.lora = asked.job.lora;
    return {};
  }
  if (!takes_adapters(asked.job.frozen)) return "nothing is trained that takes adapters";
  climb.request.job.lora = adapters(asked.job, asked.words.adapter_rank);
  return {};
}

std::string quantize(Climb& climb, const PlanRequest& /*asked*/) {
  if (!climb.request.job.lora) return "weights that are trained are not quantised, and there is no LoRA";
  climb.request.job.quantization = nn::Quantization::kNf4;
  return {};
}

constexpr std::pair<const char*, Step> kSteps[] = {
    {"none", begin}, {"16 bits", halve}, {"recomputation", recompute}, {"8-bit states", compress_states},
    {"LoRA", adapt}, {"NF4", quantize}};

Choices single_choices(const Climb& climb, const RehearsalDetail& detail) {
  const FixedChoices& fixed = climb.request.fixed;
  const models::RecomputeBlocks all{.vision = detail.vision_blocks, .language = detail.language_blocks};
  Choices choices{.micro_batch_size = fixed.micro_batch_size.value_or(1),
                  .recompute = climb.recomputes ? all : models::RecomputeBlocks{},
                  .expandable_segments = fixed.expandable_segments};
  choices.vision_tiles_per_pass = fixed.vision_tiles_per_pass.value_or(choices.vision_tiles_per_pass);
  choices.loss_chunk_rows = fixed.loss_chunk_rows.value_or(choices.loss_chunk_rows);
  return choices;
}

void rehearse(const Climb& climb, const Plan& asked, Rung& rung) {
  const Plan plan = make_plan(climb.request);
  rung.detail = plan.detail;
  if (plan.fits) {
    rung.planned = plan.chosen;
    rung.planned_bytes = plan.total_bytes();
  }
  RehearsedOptions rehearsed(climb.request.job, climb.request.card, climb.request.workload, plan.limit.limit_bytes);
  for (const auto& candidate : climb.request.workload.candidates) rehearsed.must_hold(candidate);
  rung.single = rehearsed.rehearse(single_choices(climb, plan.detail));
  rung.single_bytes = asked.total_bytes(rung.single);
}

nlohmann::ordered_json option_json(const Option& option, int64_t total_bytes) {
  return {{"micro_batch_size", option.choices.micro_batch_size},
          {"recompute", blocks_json(option.choices.recompute)},
          {"total_bytes", total_bytes},
          {"step_seconds", option.step_seconds},
          {"tokens_per_second", option.tokens_per_second},
          {"fits", option.fits}};
}

}  // namespace

std::vector<Rung> compare_ladder(const PlanRequest& request, const Plan& plan) {
  Climb climb{.request = request};
  climb.request.with_remedies = climb.request.with_timeline = false;
  climb.request.workload.average.clear();
  std::vector<Rung> rungs;
  rungs.reserve(std::size(kSteps));
  for (const auto& [name, step] : kSteps) {
    const Climb before = climb;
    Rung rung{.name = name, .arguments = {}, .absent = step(climb, request), .single = {}};
    if (rung.absent.empty()) {
      rung.arguments = climb.arguments();
      try {
        rehearse(climb, plan, rung);
      } catch (const UserError& error) {
        // What cannot be built, or needs more than any card has.
        if (error.code() == ExitCode::kFailed) throw;
        rung = {.name = name, .arguments = {}, .absent = error.what(), .single = {}};
        // What is too large as it is may be small enough a rung higher.
        if (error.code() != ExitCode::kDoesNotFit) climb = before;
      }
    }
    rungs.push_back(std::move(rung));
  }
  return rungs;
}

nlohmann::ordered_json ladder_json(const std::vector<Rung>& rungs) {
  auto list = nlohmann::ordered_json::array();
  for (const auto& rung : rungs) {
    const bool there = rung.absent.empty();
    nlohmann::ordered_json json{{"name", rung.name}, {"arguments", rung.arguments}};
    json["absent"] = there ? nlohmann::ordered_json() : nlohmann::ordered_json(rung.absent);
    json["single"] = there ? option_json(rung.single, rung.single_bytes) : nlohmann::ordered_json();
    json["planned"] = rung.planned ? option_json(*rung.planned, rung.planned_bytes) : nlohmann::ordered_json();
    list.push_back(std::move(json));
  }
  return list;
}

}  // namespace vlmtrain::planner

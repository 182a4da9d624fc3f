#include "app/doctor/rehearsal.h"

#include <fmt/format.h>

#include <chrono>

#include "app/doctor/examinations.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::app {

DryRunSteps dry_run_steps(const std::filesystem::path& model, engine::Precision precision,
                          const planner::VirtualGpu& virtual_gpu, double seconds) {
  constexpr int64_t kSteps = 4;
  const auto job = planner::with_precision({.model = model}, precision);
  const planner::SampleGroup samples{
      .shape = models::compute_sample_shape(model, {.text_tokens = 96, .label_tokens = 32}), .count = 4};
  planner::DryRunRequest request;
  request.step_config.micro_batch_size = 2;
  request.steps.assign(kSteps, {samples});
  planner::DryRunProcess process(job, virtual_gpu);
  DryRunSteps result;
  const auto start = std::chrono::steady_clock::now();
  double elapsed_seconds = 0;
  do {
    const auto outcome = process.dry_run(request);
    if (outcome.out_of_memory)
      throw run_error("a step of a tiny model found no memory on the virtual {}", virtual_gpu.gpu);
    result.steps += std::ssize(outcome.steps);
    result.step_seconds += outcome.seconds;
    result.reserved_bytes = outcome.peaks().reserved_bytes;
    elapsed_seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } while (elapsed_seconds < seconds);
  result.seconds = elapsed_seconds;
  return result;
}

Section examine_planning(const DoctorContext& context) {
  // A run on a GPU goes on without a plan, one on the CPU rehearses nothing.
  return examine_in_subprocess(
      {.name = "planning", .activity = "rehearsing a step", .on_failure = Severity::kWarn}, [&](Section& section) {
        if (context.model.empty()) return section.warn("not tried: there is no folder for a small model's files");
        const auto result = dry_run_steps(context.model, context.precision, {}, /*seconds=*/0);
        section.facts = {{"seconds", result.seconds}, {"reserved_bytes", result.reserved_bytes}};
        section.ok(
            fmt::format("a step was rehearsed on a virtual H100, beside this program, in {:.1f} s", result.seconds));
      });
}

}  // namespace vlmtrain::app

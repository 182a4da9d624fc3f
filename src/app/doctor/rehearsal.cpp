#include "app/doctor/rehearsal.h"

#include <fmt/format.h>

#include <chrono>

#include "app/doctor/examinations.h"
#include "vlmtrain/models/hypothetical_sample.h"
#include "vlmtrain/planner/rehearsal_process.h"

namespace vlmtrain::app {

RehearsedSteps rehearse_steps(const std::filesystem::path& model, engine::Precision precision,
                              const planner::VirtualCard& card, double seconds) {
  constexpr int64_t kSteps = 4;
  const auto job = planner::with_precision({.model = model}, precision);
  const planner::SampleGroup samples{.shape = models::shape_of(model, {.text_tokens = 96, .label_tokens = 32}),
                                     .count = 4};
  planner::RehearsalRequest request;
  request.choices.micro_batch_size = 2;
  request.steps.assign(kSteps, {samples});
  planner::RehearsalProcess process(job, card);
  RehearsedSteps done;
  const auto start = std::chrono::steady_clock::now();
  double since = 0;
  do {
    const auto outcome = process.rehearse(request);
    if (outcome.out_of_memory) throw run_error("a step of a tiny model found no memory on the virtual {}", card.gpu);
    done.steps += std::ssize(outcome.steps);
    done.step_seconds += outcome.seconds;
    done.reserved_bytes = outcome.peaks().reserved_bytes;
    since = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  } while (since < seconds);
  done.seconds = since;
  return done;
}

Section examine_planning(const Question& question) {
  // A run on a GPU goes on without a plan, one on the CPU rehearses nothing.
  return examine_apart(
      {.name = "planning", .doing = "rehearsing a step", .on_failure = Severity::kNote}, [&](Section& section) {
        if (question.model.empty()) return section.note("not tried: there is no folder for a small model's files");
        const auto done = rehearse_steps(question.model, question.precision, {}, /*seconds=*/0);
        section.facts = {{"seconds", done.seconds}, {"reserved_bytes", done.reserved_bytes}};
        section.ok(
            fmt::format("a step was rehearsed on a virtual H100, beside this program, in {:.1f} s", done.seconds));
      });
}

}  // namespace vlmtrain::app

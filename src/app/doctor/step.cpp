#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>

#include "app/doctor/examinations.h"
#include "app/doctor/rehearsal.h"
#include "app/run_device.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/kernels/kernels.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/planner/limit.h"
#include "vlmtrain/train/own_kernels.h"
#include "vlmtrain/train/trial.h"

namespace vlmtrain::app {

namespace {

constexpr double kTrialSeconds = 1;  // on the device, and as long on the CPU

nlohmann::ordered_json facts_of(const train::Trial& trial) {
  return {{"steps", trial.steps},
          {"steps_per_second", trial.steps_per_second},
          {"first_loss", trial.first_loss},
          {"last_loss", trial.last_loss}};
}

/// The precision of the configuration, or else one that the card has.
std::optional<engine::Precision> precision_on(const memory::Gpu& card, const Question& question, Section& section) {
  if (planner::computes_in(card, question.precision)) return question.precision;
  const std::string text = fmt::format("{} does not compute in {}: set training.precision=fp16 or fp32",
                                       card.device_name, engine::name_of(question.precision));
  if (!question.config.empty()) {
    section.mend(text);
    return std::nullopt;
  }
  section.note(text);
  return engine::Precision::kFp16;
}

bool has_learnt(const train::Trial& trial) {
  return std::isfinite(trial.last_loss) && trial.last_loss < trial.first_loss;
}

/// A trial, where it was, and the CPU's in fp32.
struct Comparison {
  std::string where;
  engine::Precision precision;
  const train::Trial& found;
  const train::Trial& wanted;
  train::TrialTolerance tolerance;
};

void compare(const Comparison& comparison, Section& section) {
  const auto& [where, precision, found, wanted, tolerance] = comparison;
  const auto apart = train::difference(found, wanted);
  section.facts["compared"] = true;
  section.facts["loss_difference"] = apart.loss;
  section.facts["loss_tolerance"] = tolerance.loss;
  section.facts["gradient_difference"] = apart.gradient;
  section.facts["gradient_tolerance"] = tolerance.gradient;
  section.facts["parameter"] = apart.parameter;
  // Not the other way round, for what is not a number.
  const bool is_equal = apart.loss <= tolerance.loss && apart.gradient <= tolerance.gradient;
  const std::string difference = fmt::format(
      "loss within {:.1e} and gradients within {:.1e} of the CPU's in fp32 (rounding explains {:.1e} and "
      "{:.1e})",
      apart.loss, apart.gradient, tolerance.loss, tolerance.gradient);
  const std::string speed = fmt::format("{:.1f} steps/s {} in {}, {:.1f} on the CPU in fp32", found.steps_per_second,
                                        where, engine::name_of(precision), wanted.steps_per_second);
  if (is_equal && has_learnt(found)) return section.ok(fmt::format("{}; {}", speed, difference));
  if (is_equal) {
    return section.mend(fmt::format("training {} does not learn: the loss went from {:.3g} to {:.3g} in {} steps; {}",
                                    where, found.first_loss, found.last_loss, found.steps, difference));
  }
  section.mend(
      fmt::format("training {} computes something else: {}, worst {}: do not train there; unset what the environment "
                  "says of kernels, update the driver, or take another device",
                  where, difference, apart.parameter));
}

void advise_fp32(const train::Trial& half, const train::Trial& full, engine::Precision precision, Section& section) {
  constexpr double kClearly = 1.2;
  if (full.steps_per_second < kClearly * half.steps_per_second) return;
  section.note(fmt::format("training.precision=fp32 is {:.1f} times as fast as {} on this CPU, for a small model",
                           full.steps_per_second / half.steps_per_second, engine::name_of(precision)));
}

void try_on_cpu(const Question& question, Section& section) {
  train::TrialSettings settings{
      .model = question.model, .precision = engine::Precision::kFp32, .seconds = kTrialSeconds};
  const auto wanted = train::try_training(settings);
  section.facts["cpu_fp32"] = facts_of(wanted);
  if (question.precision == engine::Precision::kFp32) {
    section.facts["compared"] = false;
    const auto text = fmt::format("{:.1f} steps/s on the CPU in fp32; the loss went from {:.3g} to {:.3g}",
                                  wanted.steps_per_second, wanted.first_loss, wanted.last_loss);
    return has_learnt(wanted) ? section.ok(text) : section.mend(text + ": it does not learn");
  }
  settings.precision = question.precision;
  const auto found = train::try_training(settings);
  section.facts["trial"] = facts_of(found);
  compare({.where = "on the CPU",
           .precision = question.precision,
           .found = found,
           .wanted = wanted,
           .tolerance = train::tolerance_of(question.precision)},
          section);
  advise_fp32(found, wanted, question.precision, section);
}

void note_missing_kernels(const std::string& problem, Section& section) {
  section.note(
      fmt::format("vlmtrain's own kernels are not there, and ATen's do all, in more time: {}; scripts/setup.sh fetches "
                  "nvcc, and a build with it makes them",
                  problem));
}

/// What the environment leaves out, which a run that is started from here would do without as well.
void note_left_out_kernels(Section& section) {
  try {
    const auto left_out = train::kernels_left_out_by_environment();
    if (left_out.empty()) return;
    const std::string names = train::names_of(left_out);
    section.facts["own_kernels"]["left_out"] = names;
    section.note(fmt::format("VLMTRAIN_WITHOUT_KERNELS leaves {} to ATen's operations", names));
  } catch (const UserError& error) {
    section.mend(error.what());
  }
}

void compare_kernels(at::Device device, const std::string& name, Section& section) {
  const auto opened = kernels::open_kernels(device);
  section.facts["own_kernels"] = {{"problem", opened.problem}, {"wrong", opened.wrong}};
  note_left_out_kernels(section);
  if (!opened.problem.empty()) return note_missing_kernels(opened.problem, section);
  for (const auto& how : opened.wrong) {
    section.note(fmt::format("an own kernel is left out, since it does not compute as ATen does {}: {}", name, how));
  }
  if (opened.wrong.empty()) {
    section.ok(fmt::format("{} own kernels compute {} as ATen does", kernels::all_kernels().size(), name));
  }
}

void try_on_card(const Question& question, const std::string& name, Section& section) {
  const at::Device device = open_device(name);
  compare_kernels(device, "on " + name, section);
  const auto card = planner::card_of_device(memory::describe(device));
  const auto precision = precision_on(*card.gpu, question, section);
  if (!precision) return;
  section.facts["precision"] = engine::name_of(*precision);
  train::TrialSettings settings{
      .model = question.model, .device = device, .precision = *precision, .seconds = kTrialSeconds};
  const auto found = train::try_training(settings);
  settings.device = at::kCPU;
  settings.precision = engine::Precision::kFp32;
  const auto wanted = train::try_training(settings);
  section.facts["trial"] = facts_of(found);
  section.facts["cpu_fp32"] = facts_of(wanted);
  compare({.where = "on " + name,
           .precision = *precision,
           .found = found,
           .wanted = wanted,
           .tolerance = train::tolerance_of(*precision)},
          section);
}

void rehearse(const Question& question, Section& section) {
  const auto card = virtual_card(question.device);
  const auto precision = precision_on(*memory::find_gpu(card->gpu), question, section);
  if (!precision) return;
  const std::string problem = kernels::library_problem();
  section.facts["own_kernels"] = {{"problem", problem}};
  note_left_out_kernels(section);
  if (!problem.empty()) note_missing_kernels(problem, section);
  const auto done = rehearse_steps(question.model, *precision, *card, kTrialSeconds);
  section.facts["precision"] = engine::name_of(*precision);
  section.facts["rehearsed"] = true;
  section.facts["compared"] = false;
  section.facts["trial"] = {{"steps", done.steps},
                            {"steps_per_second", static_cast<double>(done.steps) / done.step_seconds},
                            {"reserved_bytes", done.reserved_bytes}};
  section.ok(
      fmt::format("{} steps rehearsed on {} in {}: a virtual card computes nothing, so there are no values to compare, "
                  "and how fast it is means nothing",
                  done.steps, question.device, engine::name_of(*precision)));
}

}  // namespace

Section examine_step(const Question& question, const std::string& device) {
  constexpr double kMostStepSeconds = 120;
  return examine_apart(
      {.name = "step",
       .doing = "a training step",
       .remedy = "see what dmesg says, and what the environment says of kernels and libraries",
       .most_seconds = kMostStepSeconds},
      [&](Section& section) {
        section.facts = {{"device", device}, {"precision", engine::name_of(question.precision)}};
        if (question.model.empty()) {
          return section.mend("no step was tried: no folder can be written for a small model's files; set TMPDIR");
        }
        if (question.is_virtual()) return rehearse(question, section);
        if (device == "cpu") return try_on_cpu(question, section);
        try_on_card(question, device, section);
      });
}

}  // namespace vlmtrain::app

#include "train/largest_samples.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/data/largest.h"
#include "vlmtrain/planner/rehearsal_process.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

std::vector<report::LargeSample> largest_samples(const data::Outlines& outlines, int64_t count) {
  const data::SampleShapes& shapes = outlines.shapes;
  std::vector<report::LargeSample> samples;
  const auto choose = [&](int64_t index) {
    auto shape = shapes.at(index);
    if (std::ranges::find(samples, shape, &report::LargeSample::shape) != samples.end()) return;
    samples.push_back({.index = index, .id = std::string(outlines.ids[index]), .shape = std::move(shape)});
  };
  for (const int64_t index : data::largest_by(shapes, data::by_pixels, 1)) choose(index);
  for (const int64_t index : data::largest_by(shapes, data::by_label_tokens, 1)) choose(index);
  for (const int64_t index : data::largest_by(shapes, data::by_tokens, shapes.known())) {
    if (std::ssize(samples) >= count) break;
    choose(index);
  }
  std::ranges::sort(samples, [](const report::LargeSample& one, const report::LargeSample& other) {
    const auto own = data::by_tokens(one.shape), others = data::by_tokens(other.shape);
    return own != others ? own > others : one.index < other.index;
  });
  return samples;
}

report::PredictedFor predict_memory(const data::Outlines& outlines, const data::DrawOrder& order, const Config& config,
                                    const std::string& model, const planner::TargetCard& card,
                                    std::vector<report::LargeSample>& largest) {
  const planner::Job job = job_of(config);
  auto request = plan_request(config, job, card, workload_of(outlines, order, config));
  request.model = model;
  request.with_remedies = false;
  const planner::Plan plan = planner::make_plan(request);

  planner::RehearsalRequest rehearsal{.choices = plan.chosen.choices, .steps = {}, .each_from_empty_cache = true};
  rehearsal.choices.micro_batch_size = 1;
  rehearsal.choices.costs.reset();
  rehearsal.steps.reserve(largest.size());
  for (const auto& sample : largest) rehearsal.steps.push_back({{.shape = sample.shape}});
  planner::RehearsalProcess process(job, planner::rehearsal_card(card));
  const planner::Outcome outcome = process.rehearse(rehearsal);
  for (size_t i = 0; i < outcome.steps.size(); ++i) {
    largest[i].predicted_bytes = outcome.steps[i].reserved_bytes + plan.beside_bytes();
  }
  std::ranges::stable_sort(largest, std::ranges::greater(), &report::LargeSample::predicted_bytes);
  return {.card = card.description, .plan = report::plan_headline(plan), .fits = plan.fits};
}

}  // namespace vlmtrain::train

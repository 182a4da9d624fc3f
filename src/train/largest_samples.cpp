#include "train/largest_samples.h"

#include <algorithm>
#include <tuple>

#include "vlmtrain/planner/rehearsal_process.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

const data::SampleShape& shape_at(const data::Outlines& outlines, int64_t index) {
  return *outlines.shapes[static_cast<size_t>(index)];
}

std::vector<int64_t> usable_samples(const data::Outlines& outlines) {
  std::vector<int64_t> indices;
  indices.reserve(outlines.shapes.size());
  for (int64_t index = 0; index < std::ssize(outlines.shapes); ++index) {
    if (outlines.shapes[static_cast<size_t>(index)]) indices.push_back(index);
  }
  return indices;
}

/// Whether a sample comes before another by `size`: the larger first, at equal sizes in the order of the data set.
template <class Size>
auto larger_by(const data::Outlines& outlines, const Size& size) {
  return [&outlines, size](int64_t one, int64_t other) {
    const auto own = size(shape_at(outlines, one)), others = size(shape_at(outlines, other));
    return own != others ? own > others : one < other;
  };
}

}  // namespace

std::vector<report::LargeSample> largest_samples(const data::Outlines& outlines, int64_t count) {
  std::vector<int64_t> indices = usable_samples(outlines);
  if (indices.empty()) return {};
  std::vector<int64_t> chosen;
  const auto choose = [&](int64_t index) {
    const bool is_new = std::ranges::none_of(
        chosen, [&](int64_t other) { return shape_at(outlines, other) == shape_at(outlines, index); });
    if (is_new) chosen.push_back(index);
  };
  choose(*std::ranges::min_element(indices, larger_by(outlines, [](const data::SampleShape& shape) {
                                     return std::tuple(shape.pixel_rows * shape.row.bytes(), shape.tokens,
                                                       shape.label_tokens);
                                   })));
  choose(*std::ranges::min_element(indices, larger_by(outlines, [](const data::SampleShape& shape) {
                                     return std::tuple(shape.label_tokens, shape.tokens, shape.pixel_rows);
                                   })));
  const auto by_tokens = larger_by(outlines, [](const data::SampleShape& shape) {
    return std::tuple(shape.tokens, shape.pixel_rows, shape.label_tokens);
  });
  std::ranges::sort(indices, by_tokens);
  for (auto index = indices.begin(); index != indices.end() && std::ssize(chosen) < count; ++index) choose(*index);
  std::ranges::sort(chosen, by_tokens);
  std::vector<report::LargeSample> samples;
  samples.reserve(chosen.size());
  for (const int64_t index : chosen) {
    const auto place = static_cast<size_t>(index);
    samples.push_back({.index = index, .id = outlines.ids[place], .shape = *outlines.shapes[place]});
  }
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

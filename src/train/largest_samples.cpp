#include "train/largest_samples.h"

#include <algorithm>
#include <utility>

#include "vlmtrain/data/largest.h"
#include "vlmtrain/planner/rehearsal_process.h"
#include "vlmtrain/planner/search.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

std::vector<report::LargeSample> find_largest_samples(const data::SampleIndex& sample_index, int64_t count) {
  const data::SampleShapes& shapes = sample_index.shapes;
  std::vector<report::LargeSample> samples;
  const auto add_sample = [&](int64_t index) {
    auto shape = shapes.at(index);
    if (std::ranges::find(samples, shape, &report::LargeSample::shape) != samples.end()) return;
    samples.push_back({.index = index, .id = std::string(sample_index.ids[index]), .shape = std::move(shape)});
  };
  for (const int64_t index : data::find_largest(shapes, data::pixel_sort_key, 1)) add_sample(index);
  for (const int64_t index : data::find_largest(shapes, data::label_sort_key, 1)) add_sample(index);
  for (const int64_t index : data::find_largest(shapes, data::token_sort_key, shapes.num_known())) {
    if (std::ssize(samples) >= count) break;
    add_sample(index);
  }
  std::ranges::sort(samples, [](const report::LargeSample& a, const report::LargeSample& b) {
    const auto a_tokens = data::token_sort_key(a.shape), b_tokens = data::token_sort_key(b.shape);
    return a_tokens != b_tokens ? a_tokens > b_tokens : a.index < b.index;
  });
  return samples;
}

report::PredictionTarget predict_memory(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                        const Config& config, const std::string& model,
                                        const planner::TargetGpu& target, std::vector<report::LargeSample>& largest) {
  const planner::Job job = make_job(config);
  auto request = build_plan_request(config, job, target, make_workload(sample_index, order, config));
  request.model = model;
  request.with_suggestions = false;
  const planner::Plan plan = planner::make_plan(request);

  planner::DryRunRequest dry_run_request{
      .step_config = plan.best.step_config, .steps = {}, .empty_cache_each_step = true};
  dry_run_request.step_config.micro_batch_size = 1;
  dry_run_request.step_config.memory_costs.reset();
  dry_run_request.steps.reserve(largest.size());
  for (const auto& sample : largest) dry_run_request.steps.push_back({{.shape = sample.shape}});
  planner::DryRunProcess process(job, planner::make_virtual_gpu(target));
  const planner::DryRunResult outcome = process.dry_run(dry_run_request);
  for (size_t i = 0; i < outcome.steps.size(); ++i) {
    largest[i].predicted_bytes = outcome.steps[i].reserved_bytes + plan.overhead_bytes();
  }
  std::ranges::stable_sort(largest, std::ranges::greater(), &report::LargeSample::predicted_bytes);
  return {.gpu = target.description, .plan_headline = report::format_plan_headline(plan), .fits = plan.fits};
}

}  // namespace vlmtrain::train

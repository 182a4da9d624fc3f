#include "train/data_check/inspected_samples.h"

#include <algorithm>
#include <map>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/data/index/ledger.h"
#include "vlmtrain/data/sample/sample.h"
#include "vlmtrain/data/sample/sample_shape.h"
#include "vlmtrain/planner/backend.h"
#include "vlmtrain/planner/plan.h"
#include "vlmtrain/report/plan_text.h"
#include "vlmtrain/train/planning.h"

namespace vlmtrain::train {

namespace {

/// Returns the number of samples or packs that `steps` steps draw from a source. Its share may
/// change at the steps of data.task_shares.
double compute_sampled_batch_units(const data::SampleOrder& order, int64_t source, const Config& config,
                                   int64_t steps) {
  std::vector<int64_t> starts{0};
  for (const auto& change : config.data.task_shares.changes()) starts.push_back(change.first_step);
  std::ranges::sort(starts);
  starts.push_back(steps);
  double units = 0;
  for (size_t i = 0; i + 1 < starts.size(); ++i) {
    const int64_t count = std::min(starts[i + 1], steps) - std::min(starts[i], steps);
    units += order.mixture_sampler().shares(starts[i])[static_cast<size_t>(source)] * static_cast<double>(count);
  }
  return units * static_cast<double>(config.training.global_batch_size);
}

}  // namespace

std::vector<int64_t> find_first_sample_indices(const data::SampleOrder& order,
                                               const std::map<int64_t, data::SampleProblem>& problems, int64_t count) {
  std::vector<int64_t> samples;
  data::Cursor cursor = order.make_start_cursor();
  std::map<int64_t, data::SourceIterator> source_iterators;
  // Bounds the time of the search if most samples are bad. Not tuned.
  constexpr int64_t kMaxSearchedBatchUnits = 100'000;
  for (int64_t unit = 0; unit < kMaxSearchedBatchUnits && std::ssize(samples) < count; ++unit) {
    const int64_t source = order.mixture_sampler().draw_source(cursor);
    const auto source_iterator = source_iterators.try_emplace(source, order, source, data::EpochPosition{}).first;
    for (const int64_t sample : source_iterator->second.next().samples) {
      const bool is_already_added = std::ranges::find(samples, sample) != samples.end();
      if (!is_already_added && !problems.contains(sample) && std::ssize(samples) < count) samples.push_back(sample);
    }
  }
  return samples;
}

void add_steps_and_epochs(const data::SampleOrder& order, const data::Ledger& ledger, const Config& config,
                          report::Inspection& inspection) {
  const double units = data::count_batch_units_per_epoch(order, ledger);
  inspection.steps = compute_total_steps(config.training, units);
  // With global_batch_tokens, the number of samples per step is not known in advance.
  const bool has_fixed_batch_size = !config.training.batch_and_tasks.global_batch_tokens;
  const auto total_batch_units = static_cast<double>(inspection.steps * config.training.global_batch_size);
  if (has_fixed_batch_size && units > 0) inspection.epochs = total_batch_units / units;
  if (order.num_sources() == 1) return;
  const auto is_usable = [&](int64_t sample) {
    return ledger.status(sample) != data::SampleStatus::kDropped &&
           ledger.status(sample) != data::SampleStatus::kFailed;
  };
  for (int64_t source = 0; source < order.num_sources(); ++source) {
    const data::MixtureSource& mixture_source = order.source(source);
    report::InspectedMixtureSource entry{.name = mixture_source.name,
                                         .share = order.mixture_sampler().shares(0)[static_cast<size_t>(source)],
                                         .num_usable_samples = std::ranges::count_if(mixture_source.samples, is_usable),
                                         .repeat = mixture_source.repeat};
    const auto batch_units_per_epoch =
        order.settings().pack_limits ? order.get_epoch_order(source, 0)->num_units() : entry.num_usable_samples;
    if (has_fixed_batch_size && batch_units_per_epoch > 0) {
      entry.epochs = compute_sampled_batch_units(order, source, config, inspection.steps) /
                     static_cast<double>(batch_units_per_epoch);
    }
    inspection.mixture_sources.push_back(std::move(entry));
  }
}

std::vector<report::LargeSample> find_largest_samples(const data::SampleIndex& sample_index, int64_t count) {
  const data::SampleShapes& shapes = sample_index.shapes;
  std::vector<report::LargeSample> samples;
  const auto add_sample = [&](int64_t index) {
    auto shape = shapes.at(index);
    if (std::ranges::find(samples, shape, &report::LargeSample::shape) != samples.end()) return;
    samples.push_back({.index = index, .id = std::string(sample_index.ids[index]), .shape = std::move(shape)});
  };
  for (const int64_t index : data::find_largest_samples(shapes, data::get_pixel_sort_key, 1)) add_sample(index);
  for (const int64_t index : data::find_largest_samples(shapes, data::get_label_sort_key, 1)) add_sample(index);
  for (const int64_t index : data::find_largest_samples(shapes, data::get_token_sort_key, shapes.num_known_shapes())) {
    if (std::ssize(samples) >= count) break;
    add_sample(index);
  }
  std::ranges::sort(samples, [](const report::LargeSample& a, const report::LargeSample& b) {
    const auto a_sort_key = data::get_token_sort_key(a.shape), b_sort_key = data::get_token_sort_key(b.shape);
    return a_sort_key != b_sort_key ? a_sort_key > b_sort_key : a.index < b.index;
  });
  return samples;
}

report::MemoryPredictionTarget predict_memory(const data::SampleIndex& sample_index, const data::SampleOrder& order,
                                              const Config& config, const std::string& model,
                                              const planner::TargetGpu& target,
                                              std::vector<report::LargeSample>& largest) {
  const planner::Job job = make_training_job(config);
  auto request = make_plan_request(config, job, target, make_workload(sample_index, order, config));
  request.model = model;
  request.with_suggestions = false;
  const planner::Plan plan = planner::make_plan(request);

  planner::DryRunRequest dry_run_request{
      .step_config = plan.best_estimate.step_config, .steps = {}, .empty_cache_each_step = true};
  // One sample per step, not split.
  dry_run_request.step_config.micro_batch_size = 1;
  dry_run_request.step_config.memory_cost_table.reset();
  dry_run_request.steps.reserve(largest.size());
  for (const auto& sample : largest) dry_run_request.steps.push_back({{.shape = sample.shape}});
  planner::DryRunProcess process(job, planner::make_virtual_gpu(target));
  const planner::DryRunResult dry_run_result = process.dry_run(dry_run_request);
  for (size_t i = 0; i < dry_run_result.steps.size(); ++i) {
    largest[i].predicted_bytes = dry_run_result.steps[i].reserved_bytes + plan.limit.overhead_bytes();
  }
  std::ranges::stable_sort(largest, std::ranges::greater(), &report::LargeSample::predicted_bytes);
  return {.gpu = target.description, .plan_headline = report::format_plan_headline(plan), .fits = plan.fits};
}

report::SamplePreview make_sample_preview(const io::Records& records, const models::Processor& processor,
                                          int64_t index) {
  const io::Record record = records.at(index);
  report::SamplePreview preview{.index = index, .id = record.id, .task = record.task};
  try {
    const data::Sample sample = data::make_sample(processor, record, index);
    preview.shape = data::get_sample_shape(sample);
    preview.shrink_info = sample.shrink_info;
    preview.media_previews = processor.preview_media(record, sample);
    preview.rendered_chat = processor.render(record, /*as_prompt=*/false);
    std::vector<int64_t> labels;
    labels.reserve(static_cast<size_t>(sample.label_tokens()));
    for (size_t position = 0; position < sample.token_ids.size(); ++position) {
      if (sample.label_mask[position] != 0) labels.push_back(sample.token_ids[position]);
    }
    preview.label_text = processor.tokenizer().decode(labels, /*skip_special_tokens=*/false);
  } catch (const UserError& error) {
    if (error.code() != ExitCode::kBadData) throw;
    preview.problem = error.what();
  }
  return preview;
}

}  // namespace vlmtrain::train

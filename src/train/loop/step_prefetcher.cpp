#include "train/loop/step_prefetcher.h"

#include <algorithm>
#include <utility>

namespace vlmtrain::train {

namespace {

constexpr int64_t kPrefetchSteps = 2;

void use_default_plan(PlannedStep& step) {
  step.plan = {.layout = step.layout, .empty_cache_first = step.plan.empty_cache_first};
}

std::vector<data::SampleShape> get_shapes(const data::GlobalBatch& batch) {
  std::vector<data::SampleShape> shapes;
  shapes.reserve(batch.samples.size());
  for (const auto& sample : batch.samples) shapes.push_back(data::get_shape(sample));
  return shapes;
}

}  // namespace

StepPrefetcher::StepPrefetcher(data::Loader& loader, const planner::StepConfig& step_config, const TaskBalance& tasks,
                               LookAheadClient* look_ahead, int64_t first_step, int64_t last_step)
    : loader_(loader),
      step_config_(step_config),
      tasks_(tasks),
      look_ahead_(look_ahead),
      next_step_(first_step),
      last_step_(last_step) {}

PlannedStep StepPrefetcher::next(double step_seconds) {
  const double wait_seconds = fill_queue();
  PrefetchedStep entry = std::move(queue_.front());
  queue_.pop_front();
  if (entry.error) std::rethrow_exception(entry.error);
  PlannedStep step{.step = next_step_++,
                   .batch = std::move(entry.batch),
                   .layout = entry.layout,
                   .plan = {.layout = std::move(entry.layout)},
                   .data_wait_seconds = wait_seconds};
  if (look_ahead_ == nullptr) return step;
  step.plan = look_ahead_->await(step.step, step.layout, step_seconds);
  if (step.step <= last_outdated_) use_default_plan(step);
  return step;
}

void StepPrefetcher::replace(PlannedStep& step, const std::vector<int64_t>& dropped) {
  for (; !queue_.empty(); queue_.pop_back()) {
    if (queue_.back().error) std::rethrow_exception(queue_.back().error);
    loader_.put_back(std::move(queue_.back().batch));
  }
  const auto is_dropped = [&](const auto& sample) { return std::ranges::find(dropped, sample.index) != dropped.end(); };
  std::erase_if(step.batch.samples, is_dropped);
  std::erase_if(step.batch.remote_samples, is_dropped);
  loader_.refill(step.batch);
  step.layout = make_layout(step.batch, get_shapes(step.batch));
  use_default_plan(step);
  last_outdated_ = last_submitted_;
  if (look_ahead_ != nullptr) look_ahead_->mark_desynchronized();
}

engine::StepLayout StepPrefetcher::make_layout(data::GlobalBatch& batch,
                                               const std::vector<data::SampleShape>& shapes) const {
  tasks_.assign_tasks(batch.samples);
  return planner::make_step_layout(step_config_, shapes, tasks_.split_constraint(batch.samples));
}

double StepPrefetcher::fill_queue() {
  double wait_seconds = 0;
  const int64_t queue_size = 1 + (look_ahead_ != nullptr ? kPrefetchSteps : 0);
  while (std::ssize(queue_) < queue_size && next_step_ + std::ssize(queue_) <= last_step_) {
    if (!queue_.empty() && queue_.back().error) break;
    PrefetchedStep& entry = queue_.emplace_back();
    try {
      entry.batch = loader_.next();
    } catch (...) {
      entry.error = std::current_exception();
      break;
    }
    wait_seconds += entry.batch.wait_seconds;
    entry.shapes = get_shapes(entry.batch);
    entry.layout = make_layout(entry.batch, entry.shapes);
    const int64_t step = next_step_ + std::ssize(queue_) - 1;
    if (look_ahead_ == nullptr || step <= last_submitted_) continue;
    look_ahead_->submit(step, entry.shapes, entry.layout);
    last_submitted_ = step;
  }
  return wait_seconds;
}

}  // namespace vlmtrain::train

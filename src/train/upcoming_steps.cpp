#include "train/upcoming_steps.h"

#include <algorithm>
#include <utility>

namespace vlmtrain::train {

namespace {

constexpr int64_t kAhead = 2;

void do_as_planned(PlannedStep& step) {
  step.plan = {.layout = step.layout, .release_first = step.plan.release_first};
}

std::vector<data::SampleShape> shapes_of(const data::GlobalBatch& batch) {
  std::vector<data::SampleShape> shapes;
  shapes.reserve(batch.samples.size());
  for (const auto& sample : batch.samples) shapes.push_back(data::shape_of(sample));
  return shapes;
}

}  // namespace

UpcomingSteps::UpcomingSteps(data::Loader& loader, const planner::Choices& choices, const TaskBalance& tasks,
                             TwinLink* twin, int64_t first_step, int64_t last_step)
    : loader_(loader), choices_(choices), tasks_(tasks), twin_(twin), next_step_(first_step), last_step_(last_step) {}

PlannedStep UpcomingSteps::next(double step_seconds) {
  const double waited = draw();
  Drawn drawn = std::move(drawn_.front());
  drawn_.pop_front();
  if (drawn.error) std::rethrow_exception(drawn.error);
  PlannedStep step{.step = next_step_++,
                   .batch = std::move(drawn.batch),
                   .layout = drawn.layout,
                   .plan = {.layout = std::move(drawn.layout)},
                   .data_wait_seconds = waited};
  if (twin_ == nullptr) return step;
  step.plan = twin_->await(step.step, step.layout, step_seconds);
  if (step.step <= outdated_) do_as_planned(step);
  return step;
}

void UpcomingSteps::replace(PlannedStep& step, const std::vector<int64_t>& lost) {
  for (; !drawn_.empty(); drawn_.pop_back()) {
    if (drawn_.back().error) std::rethrow_exception(drawn_.back().error);
    loader_.put_back(std::move(drawn_.back().batch));
  }
  const auto is_lost = [&](const auto& sample) { return std::ranges::find(lost, sample.index) != lost.end(); };
  std::erase_if(step.batch.samples, is_lost);
  std::erase_if(step.batch.elsewhere, is_lost);
  loader_.fill(step.batch);
  step.layout = lay_out(step.batch, shapes_of(step.batch));
  do_as_planned(step);
  outdated_ = announced_;
  if (twin_ != nullptr) twin_->diverge();
}

engine::StepLayout UpcomingSteps::lay_out(data::GlobalBatch& batch,
                                          const std::vector<data::SampleShape>& shapes) const {
  tasks_.number(batch.samples);
  return planner::layout_of(choices_, shapes, tasks_.cut_rule(batch.samples));
}

double UpcomingSteps::draw() {
  double waited = 0;
  const int64_t wanted = 1 + (twin_ != nullptr ? kAhead : 0);
  while (std::ssize(drawn_) < wanted && next_step_ + std::ssize(drawn_) <= last_step_) {
    if (!drawn_.empty() && drawn_.back().error) break;
    Drawn& drawn = drawn_.emplace_back();
    try {
      drawn.batch = loader_.next();
    } catch (...) {
      drawn.error = std::current_exception();
      break;
    }
    waited += drawn.batch.wait_seconds;
    drawn.shapes = shapes_of(drawn.batch);
    drawn.layout = lay_out(drawn.batch, drawn.shapes);
    const int64_t step = next_step_ + std::ssize(drawn_) - 1;
    if (twin_ == nullptr || step <= announced_) continue;
    twin_->announce(step, drawn.shapes, drawn.layout);
    announced_ = step;
  }
  return waited;
}

}  // namespace vlmtrain::train

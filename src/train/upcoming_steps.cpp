#include "train/upcoming_steps.h"

#include <utility>

namespace vlmtrain::train {

namespace {

constexpr int64_t kAhead = 2;

void do_as_planned(UpcomingStep& step) {
  step.foreseen = {.layout = step.planned, .release_first = step.foreseen.release_first, .peaks = {}};
}

}  // namespace

UpcomingSteps::UpcomingSteps(data::Loader& loader, const planner::Choices& choices, const TaskBalance& tasks,
                             TwinLink* twin, int64_t first_step, int64_t last_step)
    : loader_(loader), choices_(choices), tasks_(tasks), twin_(twin), next_step_(first_step), last_step_(last_step) {}

UpcomingStep UpcomingSteps::next(double step_seconds) {
  const double waited = draw();
  Drawn drawn = std::move(drawn_.front());
  drawn_.pop_front();
  if (drawn.error) std::rethrow_exception(drawn.error);
  UpcomingStep step{.step = next_step_++,
                    .batch = std::move(drawn.batch),
                    .planned = drawn.planned,
                    .foreseen = {.layout = std::move(drawn.planned), .release_first = false, .peaks = {}},
                    .data_wait_seconds = waited};
  if (twin_ == nullptr) return step;
  step.foreseen = twin_->await(step.step, step.planned, step_seconds);
  if (step.step <= outdated_) do_as_planned(step);
  return step;
}

void UpcomingSteps::replace(UpcomingStep& step, int64_t place) {
  for (; !drawn_.empty(); drawn_.pop_back()) {
    if (drawn_.back().error) std::rethrow_exception(drawn_.back().error);
    loader_.put_back(std::move(drawn_.back().batch));
  }
  step.batch.samples.erase(step.batch.samples.begin() + place);
  loader_.fill(step.batch);
  step.planned = lay_out(step.batch);
  do_as_planned(step);
  outdated_ = announced_;
  if (twin_ != nullptr) twin_->diverge();
}

engine::StepLayout UpcomingSteps::lay_out(data::GlobalBatch& batch) const {
  tasks_.prepare(batch.samples);
  return planner::layout_of(choices_, tasks_.runs_of(batch.samples));
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
    drawn.planned = lay_out(drawn.batch);
    const int64_t step = next_step_ + std::ssize(drawn_) - 1;
    if (twin_ == nullptr || step <= announced_) continue;
    twin_->announce(step, drawn.batch.samples, drawn.planned);
    announced_ = step;
  }
  return waited;
}

}  // namespace vlmtrain::train

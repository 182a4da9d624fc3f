#include "train/upcoming_steps.h"

#include <utility>

namespace vlmtrain::train {

namespace {

constexpr int64_t kAhead = 2;

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
  if (twin_ != nullptr) step.foreseen = twin_->await(step.step, step.planned, step_seconds);
  return step;
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
    tasks_.prepare(drawn.batch.samples);
    drawn.planned = planner::layout_of(choices_, tasks_.runs_of(drawn.batch.samples));
    if (twin_ != nullptr) twin_->announce(next_step_ + std::ssize(drawn_) - 1, drawn.batch.samples, drawn.planned);
  }
  return waited;
}

}  // namespace vlmtrain::train

#include "vlmtrain/planner/look_ahead.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "planner/dry_run/child_process.h"
#include "planner/dry_run/protocol.h"

namespace vlmtrain::planner {

class LookAheadProcess::Impl {
 public:
  Impl(const Job& job, const StepConfig& step_config, const VirtualGpu& gpu) : child_process_(gpu) {
    worker_thread_ =
        std::jthread([this, job, step_config](const std::stop_token& stop) { run(job, step_config, stop); });
  }

  ~Impl() {
    worker_thread_.request_stop();
    child_process_.terminate();  // unblocks receive() in the thread
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void submit(LookAheadStep step) {
    const std::lock_guard lock(mutex_);
    pending_steps_.push_back(std::move(step));
    state_changed_.notify_all();
  }

  std::optional<MemoryForecast> wait_for_forecast(int64_t step, std::chrono::duration<double> timeout) {
    std::unique_lock lock(mutex_);
    state_changed_.wait_for(lock, timeout, [&] { return forecasts_.contains(step) || failure_; });
    forecasts_.erase(forecasts_.begin(), forecasts_.lower_bound(step));
    const auto forecast = forecasts_.find(step);
    return forecast == forecasts_.end() ? std::nullopt : std::optional{forecast->second};
  }

  std::optional<std::string> failure_message() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  /// The thread: sends the steps to the child one by one and stores its forecasts.
  void run(const Job& job, const StepConfig& step_config, const std::stop_token& stop) {
    try {
      child_process_.send({{"job", job}});
      child_process_.send({{"look_ahead", step_config}});
      while (const auto step = wait_for_next_step(stop)) {
        child_process_.send({{"look_ahead_step", *step}});
        auto forecast = child_process_.receive().get<MemoryForecast>();
        const std::lock_guard lock(mutex_);
        forecasts_.insert_or_assign(forecast.step, std::move(forecast));
        state_changed_.notify_all();
      }
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
      state_changed_.notify_all();
    }
  }

  /// Waits for a submitted step and returns it. Returns nullopt if the thread should stop.
  std::optional<LookAheadStep> wait_for_next_step(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (!state_changed_.wait(lock, stop, [this] { return !pending_steps_.empty(); })) return std::nullopt;
    LookAheadStep step = std::move(pending_steps_.front());
    pending_steps_.pop_front();
    return step;
  }

  ChildProcess child_process_;
  mutable std::mutex mutex_;  // guards the following members
  std::condition_variable_any state_changed_;
  std::deque<LookAheadStep> pending_steps_;
  std::map<int64_t, MemoryForecast> forecasts_;
  std::optional<std::string> failure_;
  std::jthread worker_thread_;  // last member: joined before the others are destroyed
};

LookAheadProcess::LookAheadProcess(const Job& job, const StepConfig& step_config, const VirtualGpu& gpu)
    : impl_(std::make_unique<Impl>(job, step_config, gpu)) {}

LookAheadProcess::~LookAheadProcess() = default;

void LookAheadProcess::submit(LookAheadStep step) {
  impl_->submit(std::move(step));
}

std::optional<MemoryForecast> LookAheadProcess::wait_for_forecast(int64_t step, std::chrono::duration<double> timeout) {
  return impl_->wait_for_forecast(step, timeout);
}

std::optional<std::string> LookAheadProcess::failure_message() const {
  return impl_->failure_message();
}

}  // namespace vlmtrain::planner

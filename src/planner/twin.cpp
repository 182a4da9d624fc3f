#include "vlmtrain/planner/twin.h"

#include <condition_variable>
#include <deque>
#include <exception>
#include <map>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "planner/child_process.h"
#include "planner/protocol.h"

namespace vlmtrain::planner {

class Twin::Impl {
 public:
  Impl(const Job& job, const Choices& choices, const VirtualCard& card) : child_(card) {
    thread_ = std::jthread([this, job, choices](const std::stop_token& stop) { talk(job, choices, stop); });
  }

  ~Impl() {
    thread_.request_stop();
    child_.end();  // an answer that is waited for does not come any more
  }

  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  void announce(TwinStep step) {
    const std::lock_guard lock(mutex_);
    announced_.push_back(std::move(step));
    changed_.notify_all();
  }

  std::optional<Foresight> foresight(int64_t step, std::chrono::duration<double> patience) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, patience, [&] { return answers_.contains(step) || failure_; });
    answers_.erase(answers_.begin(), answers_.lower_bound(step));
    const auto answer = answers_.find(step);
    return answer == answers_.end() ? std::nullopt : std::optional{answer->second};
  }

  std::optional<std::string> failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

 private:
  void talk(const Job& job, const Choices& choices, const std::stop_token& stop) {
    try {
      child_.send({{"job", job}});
      child_.send({{"twin", choices}});
      while (const auto step = next(stop)) {
        child_.send({{"twin_step", *step}});
        auto answer = child_.receive().get<Foresight>();
        const std::lock_guard lock(mutex_);
        answers_.insert_or_assign(answer.step, std::move(answer));
        changed_.notify_all();
      }
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex_);
      failure_ = error.what();
      changed_.notify_all();
    }
  }

  /// Nothing once the twin is to stop.
  std::optional<TwinStep> next(const std::stop_token& stop) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait(lock, stop, [this] { return !announced_.empty(); })) return std::nullopt;
    TwinStep step = std::move(announced_.front());
    announced_.pop_front();
    return step;
  }

  ChildProcess child_;
  mutable std::mutex mutex_;  // guards what follows
  std::condition_variable_any changed_;
  std::deque<TwinStep> announced_;
  std::map<int64_t, Foresight> answers_;
  std::optional<std::string> failure_;
  std::jthread thread_;  // last: joined before anything it uses is destroyed
};

Twin::Twin(const Job& job, const Choices& choices, const VirtualCard& card)
    : impl_(std::make_unique<Impl>(job, choices, card)) {}

Twin::~Twin() = default;

void Twin::announce(TwinStep step) {
  impl_->announce(std::move(step));
}

std::optional<Foresight> Twin::foresight(int64_t step, std::chrono::duration<double> patience) {
  return impl_->foresight(step, patience);
}

std::optional<std::string> Twin::failure() const {
  return impl_->failure();
}

}  // namespace vlmtrain::planner

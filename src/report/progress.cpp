#include "vlmtrain/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "vlmtrain/base/bytes.h"

namespace vlmtrain::report {

namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(5);
constexpr auto kFirstCount = std::chrono::milliseconds(500);

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

/// "12.3/12.9 GB", measured and planned; without a plan what the device or the process has taken.
std::string memory_text(const StepMetrics& metrics) {
  if (metrics.reserved_peak_bytes == 0) return format_bytes(metrics.host_peak_bytes);
  const double measured = in_gigabytes(metrics.reserved_peak_bytes);
  if (!metrics.predicted_peak_bytes) return fmt::format("{:.1f} GB", measured);
  return fmt::format("{:.1f}/{:.1f} GB", measured, in_gigabytes(*metrics.predicted_peak_bytes));
}

std::string incidents_text(const StepMetrics& metrics, int64_t oom_splits) {
  std::string text;
  if (oom_splits > 0) text += fmt::format("  {} OOM split{}", oom_splits, oom_splits == 1 ? "" : "s");
  if (metrics.skipped_steps > 0) text += fmt::format("  {} skipped", metrics.skipped_steps);
  return text;
}

/// A rehearsal has no values; that is no anomaly, as NaN in a run is.
std::string number_text(double value, int digits, bool rehearsed) {
  return rehearsed ? "-" : fmt::format("{:.{}f}", value, digits);
}

/// Cells of the bar that are filled.
size_t filled_cells(size_t width, int64_t step, int64_t total_steps) {
  const double done = static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, total_steps));
  return static_cast<size_t>(static_cast<double>(width) * std::clamp(done, 0.0, 1.0));
}

std::string percent_text(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

std::string dice_text(const std::optional<double>& dice) {
  return dice ? fmt::format("{:.3f}", *dice) : "-";
}

}  // namespace

EvaluationBefore evaluation_before(int64_t step, const EvaluationScore& score) {
  return {.step = step,
          .loss = score.loss,
          .exact_match = score.exact_match,
          .dice = score.masks ? std::optional(score.masks->dice) : std::nullopt};
}

std::string evaluation_line(const StepMetrics& metrics, const std::optional<EvaluationBefore>& best, BestBy by) {
  const EvaluationMetrics& evaluation = metrics.evaluation.value();
  const auto loss_text = [&](double loss) { return metrics.rehearsed ? "-" : fmt::format("{:.4g}", loss); };
  std::string comparison;
  if (best && !metrics.rehearsed) {
    const std::string value = by == BestBy::kLoss         ? loss_text(best->loss)
                              : by == BestBy::kExactMatch ? percent_text(best->exact_match)
                                                          : dice_text(best->dice);
    comparison = fmt::format(" (best {}{} at step {})", evaluation.is_best ? "so far, before " : "", value, best->step);
  }
  std::string line = fmt::format("step {}: validation loss {}", metrics.step, loss_text(evaluation.total.loss));
  if (by == BestBy::kLoss) line += comparison;
  if (evaluation.total.exact_match && !metrics.rehearsed) {
    line += ", exact match " + percent_text(evaluation.total.exact_match);
  }
  if (by == BestBy::kExactMatch) line += comparison;
  if (const auto& masks = evaluation.total.masks; masks && !metrics.rehearsed) {
    line += ", Dice " + dice_text(masks->dice);
    if (masks->empty_truths + masks->empty_drawn > 0) {
      line += fmt::format(" (of {} masks {} are empty, {} drawn empty)", masks->masks, masks->empty_truths,
                          masks->empty_drawn);
    }
  }
  if (by == BestBy::kDice) line += comparison;
  return line + fmt::format(", {:.{}f} s", evaluation.seconds, evaluation.seconds < 10 ? 1 : 0);
}

void TimeLeft::step_done(std::chrono::steady_clock::time_point now) {
  constexpr size_t kSteps = 50;
  times_.push_back(now);
  if (times_.size() > kSteps + 1) times_.pop_front();
}

std::optional<double> TimeLeft::seconds(int64_t steps_left) const {
  if (times_.size() < 2) return std::nullopt;
  const double seconds = std::chrono::duration<double>(times_.back() - times_.front()).count();
  return seconds / static_cast<double>(times_.size() - 1) * static_cast<double>(steps_left);
}

std::string progress_line(const StepMetrics& metrics, int64_t total_steps, std::optional<double> seconds_left,
                          int64_t oom_splits, size_t columns) {
  // The last of these go first where there is no room.
  const std::string step = fmt::format("step {}/{}", metrics.step, total_steps);
  const std::string loss = "  loss " + number_text(metrics.loss, 4, metrics.rehearsed);
  const std::string left = seconds_left ? fmt::format("  {} left", clock_text(*seconds_left)) : std::string();
  const std::string incidents = incidents_text(metrics, oom_splits);
  const std::string speed = fmt::format("  {:.0f} tokens/s", metrics.tokens_per_second());
  const std::string memory = "  " + memory_text(metrics);
  const std::string rate = fmt::format("  lr {:.2e}", metrics.learning_rate);
  const std::string norm = "  grad " + number_text(metrics.grad_norm, 2, metrics.rehearsed);
  const std::string* const by_importance[] = {&step, &loss, &left, &incidents, &speed, &memory, &rate, &norm};
  const std::string* const in_order[] = {&step, &loss, &rate, &norm, &speed, &memory, &left, &incidents};
  size_t length = 0;
  std::set<const std::string*> kept;
  for (const auto* part : by_importance) {
    if (length + part->size() > columns) break;
    length += part->size();
    kept.insert(part);
  }
  std::string text;
  for (const auto* part : in_order) {
    if (kept.contains(part)) text += *part;
  }
  return text;
}

Progress::Progress(int64_t total_steps, bool quiet)
    : total_steps_(total_steps), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputc('\n', stderr);
}

void Progress::show(const StepMetrics& metrics) {
  if (quiet_) return;
  const auto now = Clock::now();
  time_left_.step_done(now);
  oom_splits_ += metrics.oom_splits;
  const bool last = metrics.step == total_steps_;
  if (!last && now - last_shown_ < (terminal_ ? Clock::duration(kRedrawInterval) : Clock::duration(kLineInterval)))
    return;
  last_shown_ = now;

  const auto seconds_left = time_left_.seconds(total_steps_ - metrics.step);
  if (!terminal_) {
    constexpr size_t kNoLimit = 1000;
    std::fprintf(stderr, "%s\n", progress_line(metrics, total_steps_, seconds_left, oom_splits_, kNoLimit).c_str());
    return;
  }
  const size_t columns = terminal_columns() - 1;  // in the last one, some terminals wrap
  const std::string text = progress_line(metrics, total_steps_, seconds_left, oom_splits_, columns);
  std::string bar;
  if (columns > text.size() + 13) {
    const size_t width = std::min<size_t>(30, columns - text.size() - 3);
    const size_t filled = filled_cells(width, metrics.step, total_steps_);
    bar = fmt::format("[{}{}] ", std::string(filled, '#'), std::string(width - filled, '.'));
  }
  std::fprintf(stderr, "\r\x1b[K%s%s", bar.c_str(), text.c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

CountProgress::CountProgress(std::string what, int64_t total, bool quiet)
    : what_(std::move(what)),
      total_(total),
      quiet_(quiet),
      terminal_(isatty(STDERR_FILENO) == 1),
      next_(Clock::now() + (terminal_ ? Clock::duration(kFirstCount) : Clock::duration(kLineInterval))) {}

CountProgress::~CountProgress() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
}

void CountProgress::show(int64_t done) {
  const auto now = Clock::now();
  if (quiet_ || now < next_) return;
  next_ = now + (terminal_ ? Clock::duration(kRedrawInterval) : Clock::duration(kLineInterval));
  const std::string line = fmt::format("{}: {} of {} samples", what_, done, total_);
  std::fprintf(stderr, terminal_ ? "\r\x1b[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
  drawn_ = terminal_;
}

}  // namespace vlmtrain::report

#include "vlmtrain/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <utility>

#include "vlmtrain/base/text_format.h"

namespace vlmtrain::report {

namespace {

/// Time between redraws on a terminal, which looks smooth and does not slow down the run.
constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
/// Time between lines in a log. Not tuned.
constexpr auto kLogLineInterval = std::chrono::seconds(5);
/// Delay before the first update of CountProgressBar, so that short counts show nothing.
constexpr auto kFirstUpdateDelay = std::chrono::milliseconds(500);

/// Returns the width of the terminal; 80 if it is unknown.
size_t get_terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// Returns "1:02:03" or "2:03".
std::string format_duration(double seconds) {
  const auto rounded_seconds = static_cast<int64_t>(std::llround(seconds));
  if (rounded_seconds >= 3600)
    return fmt::format("{}:{:02}:{:02}", rounded_seconds / 3600, rounded_seconds / 60 % 60, rounded_seconds % 60);
  return fmt::format("{}:{:02}", rounded_seconds / 60, rounded_seconds % 60);
}

/// Returns the measured and planned peak, "12.3/12.9 GB". Without a plan, returns the measured peak
/// of the device, or of the process on the CPU.
std::string format_peak_memory(const StepMetrics& metrics) {
  if (metrics.reserved_peak_bytes == 0) return format_bytes(metrics.host_peak_bytes);
  const double measured_gigabytes = to_gigabytes(metrics.reserved_peak_bytes);
  if (!metrics.predicted_reserved_peak_bytes) return fmt::format("{:.1f} GB", measured_gigabytes);
  return fmt::format("{:.1f}/{:.1f} GB", measured_gigabytes, to_gigabytes(*metrics.predicted_reserved_peak_bytes));
}

std::string format_incidents(const StepMetrics& metrics, int64_t num_oom_splits) {
  std::string text;
  if (num_oom_splits > 0) text += fmt::format("  {} OOM split{}", num_oom_splits, num_oom_splits == 1 ? "" : "s");
  if (metrics.num_skipped_steps > 0) text += fmt::format("  {} skipped", metrics.num_skipped_steps);
  return text;
}

/// Returns the number, or "-" in a dry run, which computes no values. A run shows NaN, since there
/// it is an anomaly.
std::string format_value(double value, int digits, bool is_dry_run) {
  return is_dry_run ? "-" : fmt::format("{:.{}f}", value, digits);
}

/// Returns the number of filled cells of the bar.
size_t count_filled_cells(size_t width, int64_t step, int64_t total_steps) {
  const double fraction = static_cast<double>(step) / static_cast<double>(std::max<int64_t>(1, total_steps));
  return static_cast<size_t>(static_cast<double>(width) * std::clamp(fraction, 0.0, 1.0));
}

std::string format_percent(const std::optional<double>& share) {
  return share ? fmt::format("{:.1f} %", 100 * *share) : "-";
}

std::string format_dice(const std::optional<double>& dice) {
  return dice ? fmt::format("{:.3f}", *dice) : "-";
}

/// Returns the value of `metric` as in the line of an evaluation.
std::string format_value(const BestMetric& metric, const EvaluationBaseline& evaluation) {
  const std::optional<double> value = metric.find_value(evaluation);
  if (metric.name == "exact_match") return format_percent(value);
  if (metric.name == "dice") return format_dice(value);
  return value ? fmt::format("{:.4g}", *value) : "-";
}

}  // namespace

EvaluationBaseline make_evaluation_baseline(int64_t step, const EvaluationScore& score) {
  return {.step = step,
          .loss = score.loss,
          .exact_match = score.exact_match,
          .dice = score.masks ? std::optional(score.masks->dice) : std::nullopt,
          .metrics = score.metrics};
}

std::optional<double> BestMetric::find_value(const EvaluationBaseline& evaluation) const {
  if (name == "loss") return evaluation.loss;
  if (name == "exact_match") return evaluation.exact_match;
  if (name == "dice") return evaluation.dice;
  const auto value = evaluation.metrics.find(name);
  return value == evaluation.metrics.end() ? std::nullopt : value->second;
}

std::string format_evaluation_line(const StepMetrics& metrics, const std::optional<EvaluationBaseline>& best,
                                   const BestMetric& metric) {
  const EvaluationMetrics& evaluation = metrics.evaluation.value();
  const auto format_loss = [&](double loss) { return metrics.is_dry_run ? "-" : fmt::format("{:.4g}", loss); };
  std::string comparison;
  if (best && !metrics.is_dry_run) {
    comparison = fmt::format(" (best {}{} at step {})", evaluation.is_best ? "so far, before " : "",
                             format_value(metric, *best), best->step);
  }
  std::string line = fmt::format("step {}: validation loss {}", metrics.step, format_loss(evaluation.total.loss));
  if (metric.name == "loss") line += comparison;
  if (evaluation.total.exact_match && !metrics.is_dry_run) {
    line += ", exact match " + format_percent(evaluation.total.exact_match);
  }
  if (metric.name == "exact_match") line += comparison;
  for (const auto& [name, value] : evaluation.total.metrics) {
    if (value && !metrics.is_dry_run) line += fmt::format(", {} {:.4g}", name, *value);
    if (metric.name == name) line += comparison;
  }
  if (const auto& masks = evaluation.total.masks; masks && !metrics.is_dry_run) {
    line += ", Dice " + format_dice(masks->dice);
    if (masks->num_empty_truths + masks->num_empty_predictions > 0) {
      line += fmt::format(" (of {} masks {} are empty, {} predicted empty)", masks->masks, masks->num_empty_truths,
                          masks->num_empty_predictions);
    }
  }
  if (metric.name == "dice") line += comparison;
  return line + fmt::format(", {:.{}f} s", evaluation.seconds, evaluation.seconds < 10 ? 1 : 0);
}

void RemainingTimeEstimator::record_step(std::chrono::steady_clock::time_point now) {
  // Steps of the average. Fewer vary more; more adapt later to changes. Not tuned.
  constexpr size_t kNumAveragedSteps = 50;
  step_end_times_.push_back(now);
  if (step_end_times_.size() > kNumAveragedSteps + 1) step_end_times_.pop_front();
}

std::optional<double> RemainingTimeEstimator::estimate_remaining_seconds(int64_t num_remaining_steps) const {
  if (step_end_times_.size() < 2) return std::nullopt;
  const double seconds = std::chrono::duration<double>(step_end_times_.back() - step_end_times_.front()).count();
  return seconds / static_cast<double>(step_end_times_.size() - 1) * static_cast<double>(num_remaining_steps);
}

std::string format_progress_line(const StepMetrics& metrics, int64_t total_steps,
                                 std::optional<double> remaining_seconds, int64_t num_oom_splits, size_t columns) {
  // The least important parts are omitted first.
  const std::string step = fmt::format("step {}/{}", metrics.step, total_steps);
  const std::string loss = "  loss " + format_value(metrics.loss, 4, metrics.is_dry_run);
  const std::string remaining =
      remaining_seconds ? fmt::format("  {} left", format_duration(*remaining_seconds)) : std::string();
  const std::string incidents = format_incidents(metrics, num_oom_splits);
  const std::string speed = fmt::format("  {:.0f} tokens/s", metrics.tokens_per_second());
  const std::string memory = "  " + format_peak_memory(metrics);
  const std::string learning_rate = fmt::format("  lr {:.2e}", metrics.learning_rate);
  const std::string grad_norm = "  grad " + format_value(metrics.grad_norm, 2, metrics.is_dry_run);
  const std::string* const by_importance[] = {&step,  &loss,   &remaining,     &incidents,
                                              &speed, &memory, &learning_rate, &grad_norm};
  const std::string* const by_position[] = {&step,  &loss,   &learning_rate, &grad_norm,
                                            &speed, &memory, &remaining,     &incidents};
  size_t length = 0;
  std::set<const std::string*> visible_parts;
  for (const auto* part : by_importance) {
    if (length + part->size() > columns) break;
    length += part->size();
    visible_parts.insert(part);
  }
  std::string text;
  for (const auto* part : by_position) {
    if (visible_parts.contains(part)) text += *part;
  }
  return text;
}

ProgressBar::ProgressBar(int64_t total_steps, bool quiet)
    : total_steps_(total_steps), is_quiet_(quiet), is_terminal_(isatty(STDERR_FILENO) == 1) {}

ProgressBar::~ProgressBar() {
  if (is_bar_visible_) std::fputc('\n', stderr);
}

void ProgressBar::show(const StepMetrics& metrics) {
  if (is_quiet_) return;
  const auto now = Clock::now();
  remaining_time_estimator_.record_step(now);
  num_oom_splits_ += metrics.num_oom_splits;
  const bool is_last = metrics.step == total_steps_;
  if (!is_last &&
      now - last_show_time_ < (is_terminal_ ? Clock::duration(kRedrawInterval) : Clock::duration(kLogLineInterval)))
    return;
  last_show_time_ = now;

  const auto remaining_seconds = remaining_time_estimator_.estimate_remaining_seconds(total_steps_ - metrics.step);
  if (!is_terminal_) {
    // Lines in a log are not shortened.
    constexpr size_t kNoLimit = 1000;
    std::fprintf(stderr, "%s\n",
                 format_progress_line(metrics, total_steps_, remaining_seconds, num_oom_splits_, kNoLimit).c_str());
    return;
  }
  const size_t columns = get_terminal_columns() - 1;  // some terminals wrap in the last column
  const std::string text = format_progress_line(metrics, total_steps_, remaining_seconds, num_oom_splits_, columns);
  // A bar has more than 10 and at most 30 cells, and 3 columns for brackets and a space.
  std::string bar;
  if (columns > text.size() + 13) {
    const size_t width = std::min<size_t>(30, columns - text.size() - 3);
    const size_t num_filled_cells = count_filled_cells(width, metrics.step, total_steps_);
    bar = fmt::format("[{}{}] ", std::string(num_filled_cells, '#'), std::string(width - num_filled_cells, '.'));
  }
  std::fprintf(stderr, "\r\x1b[K%s%s", bar.c_str(), text.c_str());
  std::fflush(stderr);
  is_bar_visible_ = true;
}

void ProgressBar::clear() {
  if (is_bar_visible_) std::fputs("\r\x1b[K", stderr);
  is_bar_visible_ = false;
}

CountProgressBar::CountProgressBar(std::string label, int64_t total, bool quiet)
    : label_(std::move(label)),
      total_count_(total),
      is_quiet_(quiet),
      is_terminal_(isatty(STDERR_FILENO) == 1),
      next_update_time_(Clock::now() +
                        (is_terminal_ ? Clock::duration(kFirstUpdateDelay) : Clock::duration(kLogLineInterval))) {}

CountProgressBar::~CountProgressBar() {
  if (is_bar_visible_) std::fputs("\r\x1b[K", stderr);
}

void CountProgressBar::show(int64_t count) {
  const auto now = Clock::now();
  if (is_quiet_ || now < next_update_time_) return;
  next_update_time_ = now + (is_terminal_ ? Clock::duration(kRedrawInterval) : Clock::duration(kLogLineInterval));
  const std::string line = fmt::format("{}: {} of {} samples", label_, count, total_count_);
  std::fprintf(stderr, is_terminal_ ? "\r\x1b[K%s" : "%s\n", line.c_str());
  std::fflush(stderr);
  is_bar_visible_ = is_terminal_;
}

}  // namespace vlmtrain::report

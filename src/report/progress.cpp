#include "vlmtrain/report/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <string>

#include "vlmtrain/base/bytes.h"

namespace vlmtrain::report {

namespace {

constexpr auto kRedrawInterval = std::chrono::milliseconds(100);
constexpr auto kLineInterval = std::chrono::seconds(5);

size_t terminal_columns() {
  winsize size{};
  return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<int64_t>(seconds + 0.5);
  if (whole >= 3600) return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

}  // namespace

Progress::Progress(int64_t total_steps, int64_t done_steps, bool quiet)
    : total_steps_(total_steps), done_steps_(done_steps), quiet_(quiet), terminal_(isatty(STDERR_FILENO) == 1) {}

Progress::~Progress() {
  if (drawn_) std::fputc('\n', stderr);
}

std::string Progress::line(const StepMetrics& metrics, double seconds_left) const {
  const int64_t peak = metrics.reserved_peak_bytes > 0 ? metrics.reserved_peak_bytes : metrics.host_peak_bytes;
  return fmt::format("step {}/{}  loss {:.4f}  lr {:.2e}  grad {:.2f}  {:.0f} tokens/s  {}  {} left", metrics.step,
                     total_steps_, metrics.loss, metrics.learning_rate, metrics.grad_norm, metrics.tokens_per_second(),
                     format_bytes(peak), clock_text(seconds_left));
}

void Progress::show(const StepMetrics& metrics) {
  if (quiet_) return;
  const auto now = Clock::now();
  const bool last = metrics.step == total_steps_;
  if (!last && now - last_shown_ < (terminal_ ? Clock::duration(kRedrawInterval) : Clock::duration(kLineInterval)))
    return;
  last_shown_ = now;

  const double seconds = std::chrono::duration<double>(now - start_).count();
  const double seconds_left = seconds / static_cast<double>(std::max<int64_t>(1, metrics.step - done_steps_)) *
                              static_cast<double>(total_steps_ - metrics.step);
  const std::string text = line(metrics, seconds_left);
  if (!terminal_) {
    std::fprintf(stderr, "%s\n", text.c_str());
    return;
  }
  const size_t columns = terminal_columns();
  std::string bar;
  if (columns > text.size() + 14) {
    const size_t width = std::min<size_t>(30, columns - text.size() - 4);
    const size_t filled =
        width * static_cast<size_t>(metrics.step) / static_cast<size_t>(std::max<int64_t>(1, total_steps_));
    bar = fmt::format("[{}{}] ", std::string(filled, '#'), std::string(width - filled, '.'));
  }
  std::fprintf(stderr, "\r\x1b[K%s", (bar + text).substr(0, columns - 1).c_str());
  std::fflush(stderr);
  drawn_ = true;
}

void Progress::clear() {
  if (drawn_) std::fputs("\r\x1b[K", stderr);
  drawn_ = false;
}

}  // namespace vlmtrain::report

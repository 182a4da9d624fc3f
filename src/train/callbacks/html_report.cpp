#include "train/callbacks/html_report.h"

#include <algorithm>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/log.h"

namespace vlmtrain::train {

namespace {

constexpr std::chrono::seconds kInterval{10};
constexpr int kIntervalPerWriteTime = 200;

}  // namespace

void HtmlReport::on_step(const StepReport& /*step*/) {
  if (Clock::now() >= next_write_) write();
}

void HtmlReport::on_end(bool /*well*/) {
  write();
}

/// A page that cannot be written is no reason to stop a run.
void HtmlReport::write() {
  const auto start = Clock::now();
  try {
    report_.write();
    failed_ = false;
  } catch (const UserError& error) {
    if (!failed_) spdlog::warn("report.html is not up to date: {}", error.what());
    failed_ = true;
  }
  const auto end = Clock::now();
  next_write_ = end + std::max<Clock::duration>(kInterval, kIntervalPerWriteTime * (end - start));
}

}  // namespace vlmtrain::train

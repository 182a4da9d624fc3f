#pragma once

#include <chrono>

#include "train/callbacks/callback.h"
#include "vlmtrain/report/run_report.h"

namespace vlmtrain::train {

/// report.html, written anew every ten seconds or more rarely: at most one part in two hundred of the time.
class HtmlReport final : public Callback {
 public:
  explicit HtmlReport(const std::filesystem::path& run_folder) : report_(run_folder) {}

  void on_step(const StepReport& step) override;
  void on_end(bool succeeded) override;

 private:
  using Clock = std::chrono::steady_clock;

  void write();

  report::RunReport report_;
  Clock::time_point next_write_ = Clock::now();
  bool failed_ = false;
};

}  // namespace vlmtrain::train

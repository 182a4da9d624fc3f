#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace vlmtrain::report {

/// The report of a run folder: one HTML file without anything to load from elsewhere, with what config.yaml, plan.json,
/// metrics.jsonl, events.jsonl, predictions.jsonl, ledger.json and environment.json hold. Each of them may be missing,
/// unfinished or damaged; then the page lacks what it would tell. An open page of an unfinished run re-reads its file.
///
/// It remembers what it has read, so that writing it again costs what was added since. One thread at a time.
class RunReport {
 public:
  explicit RunReport(std::filesystem::path run_dir);
  RunReport(RunReport&&) noexcept;
  RunReport& operator=(RunReport&&) noexcept;
  ~RunReport();

  std::string html();
  /// Writes `report.html` into the run folder: always the old page or the new one. Throws UserError (kFailed).
  void write();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// RunReport of what is there now. Throws UserError (kUsage) where `run_dir` is no folder of a run.
std::string render_run_report(const std::filesystem::path& run_dir);
void write_run_report(const std::filesystem::path& run_dir);

}  // namespace vlmtrain::report

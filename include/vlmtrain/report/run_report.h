#pragma once

#include <filesystem>
#include <memory>
#include <string>

namespace vlmtrain::report {

/// The report of a run folder: one HTML file without external resources, with the content of
/// config.yaml, plan.json, metrics.jsonl, events.jsonl, predictions.jsonl, ledger.json and
/// environment.json. Any of them may be missing, incomplete or damaged; the page then lacks that
/// content. An open page of a running run reloads its file.
///
/// The report remembers what it has read, so that each write costs only the additions. Not
/// thread-safe.
class RunReport {
 public:
  explicit RunReport(std::filesystem::path run_dir);
  RunReport(RunReport&&) noexcept;
  RunReport& operator=(RunReport&&) noexcept;
  ~RunReport();

  std::string html();
  /// Writes `report.html` into the run folder atomically. Throws UserError (kFailed).
  void write();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the page for the current content. Throws UserError (kUsage) if `run_dir` is not a run
/// folder.
std::string render_run_report(const std::filesystem::path& run_dir);
void write_run_report(const std::filesystem::path& run_dir);

}  // namespace vlmtrain::report

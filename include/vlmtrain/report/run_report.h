#pragma once

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

namespace vlmtrain::report {

/// The report keeps the parsed content, so that each call reads only the additions. Not
/// thread-safe.
class RunReport {
 public:
  /// Reads nothing yet.
  explicit RunReport(const std::filesystem::path& run_dir);
  RunReport(RunReport&&) noexcept;
  RunReport& operator=(RunReport&&) noexcept;
  ~RunReport();

  /// Reads the additions to the files and returns the page. Throws UserError (kBadData) if one of
  /// the JSON Lines files is not a regular file.
  std::string render_html();
  /// Returns what the newest page lacks because a file cannot be read or is damaged: one line for
  /// each file.
  std::vector<std::string> describe_problems() const;
  /// Writes `report.html` into the run folder atomically. Throws UserError (kFailed).
  void write();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Returns the page for the current content. Throws UserError (kUsage) if `run_dir` is not a run
/// folder, (kBadData) if one of the JSON Lines files is not a regular file.
std::string render_run_report(const std::filesystem::path& run_dir);
/// Writes the result of render_run_report() to `report.html` in the run folder. Returns
/// RunReport::describe_problems(). Throws UserError, also kFailed if the file cannot be written.
std::vector<std::string> write_run_report(const std::filesystem::path& run_dir);

}  // namespace vlmtrain::report

#include "vlmtrain/report/run_report.h"

#include <sys/stat.h>

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <iterator>

#include "report/format/html.h"
#include "report/run/run_events.h"
#include "report/run/run_steps.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/file_names.h"
#include "vlmtrain/base/option_keys.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/report/json_lines.h"
#include "vlmtrain/report/metrics.h"

namespace vlmtrain::report {

namespace {

namespace fs = std::filesystem;

/// Limits that keep the page small; the files of the run have the complete data. Not tuned.
constexpr size_t kMaxLedgerProblems = 50;
constexpr size_t kMaxEpochRows = 100;
constexpr size_t kMaxConfigBytes = 100'000;
/// Keys of plan.json that the page needs. The alternatives, which are long, are omitted.
constexpr const char* kPlanKeys[] = {"device",
                                     "model",
                                     "precision",
                                     "finetune",
                                     "quantization",
                                     "micro_batch_size",
                                     "gradient_accumulation_steps",
                                     "global_batch_size",
                                     "world_size",
                                     "recompute",
                                     "blocks",
                                     "vision_tiles_per_pass",
                                     "tokens_per_sample",
                                     "worst_sample",
                                     "mode",
                                     "margin_bytes",
                                     "limit_bytes",
                                     "parameters",
                                     "trained_parameters",
                                     "memory",
                                     "measured",
                                     "step_seconds",
                                     "tokens_per_second",
                                     "plan_seconds"};

/// Further keys of plan.json, with their names in files of earlier versions.
constexpr io::FieldAlias kRenamedPlanKeys[] = {{"gpu", "card"}, {"gpu_bytes", "card_bytes"}};

/// Returns the modification time as Unix time in seconds; 0 if the file does not exist.
double get_modified_time(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

/// A parsed file that is read again when its modification time changes.
class CachedFile {
 public:
  using ParseFunction = nlohmann::json (*)(const std::string& content);
  CachedFile(fs::path path, ParseFunction parse) : path_(std::move(path)), parse_function_(parse) {}

  const nlohmann::json& value() {
    const double time = get_modified_time(path_);
    if (time != modified_time_) {
      parsed_content_ = nlohmann::json();
      read_error_.clear();
      if (time > 0) read();
    }
    modified_time_ = time;
    return parsed_content_;
  }

  /// Returns why the report omits the file; empty if value() has read it or it does not exist.
  std::string describe_problem() const {
    if (!read_error_.empty()) return read_error_;
    return modified_time_ > 0 && parsed_content_.is_null()
               ? fmt::format("{}: is not a JSON object; the report omits it", to_printable(path_.string()))
               : "";
  }

 private:
  void read() {
    try {
      parsed_content_ = parse_function_(io::read_file(path_));
    } catch (const UserError& error) {
      if (!describe_non_regular_file(path_).empty()) throw;
      read_error_ = fmt::format("{}; the report omits it", error.what());
    }
  }

  fs::path path_;
  ParseFunction parse_function_;
  double modified_time_ = 0;
  nlohmann::json parsed_content_;
  std::string read_error_;
};

/// Returns the content as JSON; null if it is not an object.
nlohmann::json parse_json_object(const std::string& content) {
  const auto json = io::try_parse_json(content).value_or(nlohmann::json());
  return json.is_object() ? json : nlohmann::json();
}

nlohmann::json parse_plan(const std::string& content) {
  const auto plan = parse_json_object(content);
  if (plan.is_null()) return {};
  nlohmann::json selected_fields;
  for (const char* const key : kPlanKeys) {
    if (const auto entry = plan.find(key); entry != plan.end()) selected_fields[key] = *entry;
  }
  for (const io::FieldAlias field : kRenamedPlanKeys) {
    if (const auto entry = plan.find(io::find_field_name(plan, field)); entry != plan.end()) {
      selected_fields[field.name] = *entry;
    }
  }
  return selected_fields;
}

nlohmann::json parse_ledger(const std::string& content) {
  auto ledger = parse_json_object(content);
  if (ledger.is_null()) return ledger;
  auto& problems = ledger["problems"];
  const size_t count = problems.is_array() ? problems.size() : 0;
  if (count > kMaxLedgerProblems) problems.erase(problems.begin() + kMaxLedgerProblems, problems.end());
  ledger["more_problems"] = count - std::min(count, kMaxLedgerProblems);
  return ledger;
}

/// Returns the row without its tasks, which have their own curves.
nlohmann::json remove_tasks(nlohmann::json row) {
  row.erase("tasks");
  if (row["evaluation"].is_object()) row["evaluation"].erase("tasks");
  return row;
}

nlohmann::json truncate_config(const std::string& content) {
  return truncate_utf8(content, kMaxConfigBytes);
}

fs::path make_absolute_path(const fs::path& run_dir) {
  const fs::path path = fs::absolute(run_dir).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

struct RunReport::State {
  explicit State(const fs::path& run_dir)
      : folder(make_absolute_path(run_dir)),
        step_follower(folder / "metrics.jsonl"),
        event_follower(folder / "events.jsonl"),
        prediction_follower(folder / "predictions.jsonl"),
        plan(folder / "plan.json", parse_plan),
        ledger(folder / "ledger.json", parse_ledger),
        environment(folder / "environment.json", parse_json_object),
        config(folder / "config.yaml", truncate_config) {}

  void read() {
    // A run that resumes drops the lines after its checkpoint by replacing the file.
    if (step_follower.was_replaced() || event_follower.was_replaced() || prediction_follower.was_replaced())
      *this = State(folder);
    step_follower.read([this](const auto& line) {
      steps.add(line);
      for (const auto& row : epochs.add(line)) {
        epoch_rows.push_back(remove_tasks(row));
        if (epoch_rows.size() > kMaxEpochRows) epoch_rows.pop_front();
        ++num_complete_epochs;
      }
    });
    event_follower.read([this](const auto& line) { events.add(line); });
    prediction_follower.read([this](const auto& line) { predictions.add(line); });
  }

  /// Returns what the page lacks because a file cannot be read.
  std::vector<std::string> describe_problems() const {
    std::vector<std::string> problems{
        step_follower.describe_problem(), event_follower.describe_problem(), prediction_follower.describe_problem(),
        plan.describe_problem(),          ledger.describe_problem(),         environment.describe_problem(),
        config.describe_problem()};
    std::erase(problems, "");
    return problems;
  }

  /// Returns the names of the parent folder and the folder, since many runs are called "run".
  std::string name() const { return (folder.parent_path().filename() / folder.filename()).string(); }

  /// Returns "stopped", "failed", "finished" or "running". A killed run counts as "running"; the
  /// page compares the time of its last update with the clock.
  std::string find_run_state() const {
    if (!events.end_state().empty() && events.end_step() >= steps.last_step()) return events.end_state();
    return steps.total_steps() > 0 && steps.last_step() >= steps.total_steps() ? "finished" : "running";
  }

  /// Returns the newest epochs, including the current one.
  nlohmann::json epochs_to_json() const {
    auto rows = nlohmann::json::array();
    for (const auto& row : epoch_rows) rows.push_back(row);
    if (auto row = epochs.make_current_epoch_row()) rows.push_back(remove_tasks(*row));
    return {{"rows", std::move(rows)}, {"hidden", num_complete_epochs - std::ssize(epoch_rows)}};
  }

  std::string make_page_data() {
    const std::string state = find_run_state();
    const nlohmann::json json{
        {"name", name()},
        {"state", state},
        {"message", state == "stopped" || state == "failed" ? events.end_message() : std::string()},
        {"updated", std::max(events.last_event_time(), get_modified_time(folder / "metrics.jsonl"))},
        {"written", get_unix_seconds()},
        {"summary", steps.make_summary_json()},
        {"tasks", steps.tasks_to_json()},
        {"evaluations", steps.evaluations_to_json()},
        {"epochs", epochs_to_json()},
        {"events", events.to_json()},
        {"predictions", predictions.to_json()},
        {"plan", plan.value()},
        {"ledger", ledger.value()},
        {"environment", environment.value()},
        {"config", config.value()}};
    std::string text = escape_script_json(json);
    text.pop_back();  // the closing brace: appends the curves, which are already JSON text
    return text + ",\"curves\":" + steps.curves_to_json() + "}";
  }

  fs::path folder;
  JsonLinesFollower step_follower;
  JsonLinesFollower event_follower;
  JsonLinesFollower prediction_follower;
  RunSteps steps;
  EpochSummaries epochs;
  std::deque<nlohmann::json> epoch_rows;
  int64_t num_complete_epochs = 0;  // rows of complete epochs
  RunEvents events;
  RunPredictions predictions;
  CachedFile plan;
  CachedFile ledger;
  CachedFile environment;
  CachedFile config;
};

RunReport::RunReport(const fs::path& run_dir) : state_(std::make_unique<State>(run_dir)) {}
RunReport::RunReport(RunReport&&) noexcept = default;
RunReport& RunReport::operator=(RunReport&&) noexcept = default;
RunReport::~RunReport() = default;

std::string RunReport::render_html() {
  state_->read();
  const auto read_resource = [](std::string_view name) { return std::string(resources().at(std::string(name))); };
  return fill_page_template("run_report.html",
                            {{"title", escape_html(state_->name())},
                             {"style", read_resource("common.css") + read_resource("run_report.css")},
                             {"data", state_->make_page_data()},
                             {"script", read_resource("elements.js") + read_resource("line_chart.js") +
                                            read_resource("run_sections.js") + read_resource("run_report.js")}});
}

std::vector<std::string> RunReport::describe_problems() const {
  return state_->describe_problems();
}

void RunReport::write() {
  io::write_file(state_->folder / "report.html", render_html());
}

namespace {

/// Throws UserError (kUsage) if `run_dir` is not a run folder.
void check_run_folder(const fs::path& run_dir) {
  if (!fs::is_directory(run_dir)) {
    throw usage_error("{}: is not a folder; pass the {} of a run", run_dir.string(), keys::output::kDir);
  }
  constexpr const char* kRunFileNames[] = {"config.yaml", "metrics.jsonl", "environment.json", "plan.json"};
  if (std::none_of(std::begin(kRunFileNames), std::end(kRunFileNames),
                   [&](const char* file) { return fs::exists(run_dir / file); })) {
    throw usage_error("{}: has no config.yaml or metrics.jsonl; pass the {} of a run", run_dir.string(),
                      keys::output::kDir);
  }
}

}  // namespace

std::string render_run_report(const fs::path& run_dir) {
  check_run_folder(run_dir);
  return RunReport(run_dir).render_html();
}

std::vector<std::string> write_run_report(const fs::path& run_dir) {
  check_run_folder(run_dir);
  RunReport run_report(run_dir);
  run_report.write();
  return run_report.describe_problems();
}

}  // namespace vlmtrain::report

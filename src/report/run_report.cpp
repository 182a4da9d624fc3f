#include "vlmtrain/report/run_report.h"

#include <sys/stat.h>

#include <algorithm>
#include <deque>
#include <iterator>

#include "report/appended_lines.h"
#include "report/json_value.h"
#include "report/page.h"
#include "report/run_events.h"
#include "report/run_predictions.h"
#include "report/run_steps.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/io/atomic.h"
#include "vlmtrain/io/file.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/report/event.h"
#include "vlmtrain/report/run_epochs.h"

namespace vlmtrain::report {

namespace {

namespace fs = std::filesystem;

constexpr size_t kMostProblems = 50;
constexpr size_t kMostEpochRows = 100;
constexpr size_t kLongestConfig = 100'000;
/// Of the plan; its alternatives are in plan.json.
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
                                     "card",
                                     "card_bytes",
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

double modified_time(const fs::path& path) {
  struct stat status {};
  if (stat(path.c_str(), &status) != 0) return 0;
  return static_cast<double>(status.st_mtim.tv_sec) + static_cast<double>(status.st_mtim.tv_nsec) * 1e-9;
}

/// A file that is replaced now and then, as the page has it; read when it has changed.
class Snapshot {
 public:
  using Reading = nlohmann::json (*)(const std::string& content);
  Snapshot(fs::path path, Reading reading) : path_(std::move(path)), reading_(reading) {}

  const nlohmann::json& value() {
    const double time = modified_time(path_);
    if (time != time_) value_ = time > 0 ? reading_(io::read_file(path_)) : nlohmann::json();
    time_ = time;
    return value_;
  }

 private:
  fs::path path_;
  Reading reading_;
  double time_ = 0;
  nlohmann::json value_;
};

/// Null where it is not an object.
nlohmann::json parsed_object(const std::string& content) {
  const auto json = io::json_of(content).value_or(nlohmann::json());
  return json.is_object() ? json : nlohmann::json();
}

nlohmann::json plan_on_page(const std::string& content) {
  const auto plan = parsed_object(content);
  if (plan.is_null()) return plan;
  nlohmann::json shown;
  for (const char* const key : kPlanKeys) {
    if (const auto found = plan.find(key); found != plan.end()) shown[key] = *found;
  }
  return shown;
}

nlohmann::json ledger_on_page(const std::string& content) {
  auto ledger = parsed_object(content);
  if (ledger.is_null()) return ledger;
  auto& problems = ledger["problems"];
  const size_t count = problems.is_array() ? problems.size() : 0;
  if (count > kMostProblems) problems.erase(problems.begin() + kMostProblems, problems.end());
  ledger["more_problems"] = count - std::min(count, kMostProblems);
  return ledger;
}

/// Tasks have their curves.
nlohmann::json epoch_on_page(nlohmann::json row) {
  row.erase("tasks");
  if (row["evaluation"].is_object()) row["evaluation"].erase("tasks");
  return row;
}

nlohmann::json config_on_page(const std::string& content) {
  return shortened(content, kLongestConfig);
}

fs::path absolute_folder(const fs::path& run_dir) {
  const fs::path path = fs::absolute(run_dir).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

}  // namespace

struct RunReport::State {
  explicit State(const fs::path& run_dir)
      : folder(absolute_folder(run_dir)),
        step_lines(folder / "metrics.jsonl"),
        event_lines(folder / "events.jsonl"),
        prediction_lines(folder / "predictions.jsonl"),
        plan(folder / "plan.json", plan_on_page),
        ledger(folder / "ledger.json", ledger_on_page),
        environment(folder / "environment.json", parsed_object),
        config(folder / "config.yaml", config_on_page) {}

  void read() {
    // A run that went on from a checkpoint has dropped the lines behind it.
    if (step_lines.was_replaced() || event_lines.was_replaced() || prediction_lines.was_replaced())
      *this = State(folder);
    step_lines.read([this](const auto& line) {
      steps.add(line);
      for (const auto& row : epochs.add(line)) {
        epoch_rows.push_back(epoch_on_page(row));
        if (epoch_rows.size() > kMostEpochRows) epoch_rows.pop_front();
        ++epochs_before;
      }
    });
    event_lines.read([this](const auto& line) { events.add(line); });
    prediction_lines.read([this](const auto& line) { predictions.add(line); });
  }

  /// The folder's name with that of the one around it, for many runs are called "run".
  std::string name() const { return (folder.parent_path().filename() / folder.filename()).string(); }

  /// "running" is also what a run says that was killed; the page tells by the time of the last sign of life.
  std::string standing() const {
    if (!events.ending().empty() && events.ending_step() >= steps.last_step()) return events.ending();
    return steps.total_steps() > 0 && steps.last_step() >= steps.total_steps() ? "finished" : "running";
  }

  /// Of the newest epochs, the one under way included.
  nlohmann::json epochs_json() const {
    auto rows = nlohmann::json::array();
    for (const auto& row : epoch_rows) rows.push_back(row);
    if (auto row = epochs.under_way()) rows.push_back(epoch_on_page(*row));
    return {{"rows", std::move(rows)}, {"left_out", epochs_before - std::ssize(epoch_rows)}};
  }

  std::string data() {
    const std::string state = standing();
    const nlohmann::json rest{
        {"name", name()},
        {"state", state},
        {"message", state == "stopped" || state == "failed" ? events.ending_message() : std::string()},
        {"updated", std::max(events.last_time(), modified_time(folder / "metrics.jsonl"))},
        {"written", unix_seconds()},
        {"summary", steps.summary()},
        {"tasks", steps.tasks()},
        {"evaluations", steps.evaluations()},
        {"epochs", epochs_json()},
        {"events", events.to_json()},
        {"predictions", predictions.to_json()},
        {"plan", plan.value()},
        {"ledger", ledger.value()},
        {"environment", environment.value()},
        {"config", config.value()}};
    std::string text = script_json(rest);
    text.pop_back();
    return text + ",\"curves\":" + steps.curves_json() + "}";
  }

  fs::path folder;
  AppendedLines step_lines;
  AppendedLines event_lines;
  AppendedLines prediction_lines;
  RunSteps steps;
  RunEpochs epochs;
  std::deque<nlohmann::json> epoch_rows;
  int64_t epochs_before = 0;  // rows of those that are over
  RunEvents events;
  RunPredictions predictions;
  Snapshot plan;
  Snapshot ledger;
  Snapshot environment;
  Snapshot config;
};

RunReport::RunReport(fs::path run_dir) : state_(std::make_unique<State>(run_dir)) {}
RunReport::RunReport(RunReport&&) noexcept = default;
RunReport& RunReport::operator=(RunReport&&) noexcept = default;
RunReport::~RunReport() = default;

std::string RunReport::html() {
  state_->read();
  const auto page = [](std::string_view name) { return std::string(resources().at(std::string(name))); };
  return filled_page("run_report.html", {{"title", html_escaped(state_->name())},
                                         {"style", page("common.css") + page("run_report.css")},
                                         {"data", state_->data()},
                                         {"script", page("elements.js") + page("line_chart.js") +
                                                        page("run_sections.js") + page("run_report.js")}});
}

void RunReport::write() {
  io::write_file(state_->folder / "report.html", html());
}

std::string run_report_html(const fs::path& run_dir) {
  if (!fs::is_directory(run_dir)) {
    throw usage_error("{}: no such folder; name the output.dir of a run", run_dir.string());
  }
  constexpr const char* kFiles[] = {"config.yaml", "metrics.jsonl", "environment.json", "plan.json"};
  if (std::none_of(std::begin(kFiles), std::end(kFiles),
                   [&](const char* file) { return fs::exists(run_dir / file); })) {
    throw usage_error("{}: holds no run: there is neither a config.yaml nor a metrics.jsonl in it", run_dir.string());
  }
  return RunReport(run_dir).html();
}

void write_run_report(const fs::path& run_dir) {
  io::write_file(absolute_folder(run_dir) / "report.html", run_report_html(run_dir));
}

}  // namespace vlmtrain::report

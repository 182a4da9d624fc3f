#include <fmt/format.h>

#include <regex>

#include "e2e/command.h"
#include "parity/temporary_folder.h"
#include "report/run_example.h"

namespace vlmtrain::e2e {

namespace {

using report::EventKind;
using report::RunFolder;
using testing::HasSubstr;
using testing::Not;

/// Returns the path of a browser; empty where none is installed.
std::string chromium() {
  std::istringstream folders(getenv("PATH"));
  for (std::string folder; std::getline(folders, folder, ':');) {
    for (const char* name : {"chromium", "chromium-browser", "google-chrome"}) {
      if (access((std::filesystem::path(folder) / name).c_str(), X_OK) == 0) return folder + "/" + name;
    }
  }
  return {};
}

/// A script in the page's head records errors and blocked or missing resources.
constexpr const char* kWatch = R"(<script>
addEventListener("error", (event) => { document.documentElement.dataset.errors = (document.documentElement.dataset.errors || "") + (event.message || event.target.tagName) + ";"; }, true);
addEventListener("securitypolicyviolation", (event) => { document.documentElement.dataset.errors = (document.documentElement.dataset.errors || "") + event.violatedDirective + ";"; });
</script>)";

/// A script that moves the pointer over the first chart and records the tooltip.
constexpr const char* kHover = R"(<script>
const plot = document.querySelector(".plot");
const bounds = plot.getBoundingClientRect();
const at = (type, share) => plot.dispatchEvent(new PointerEvent(type, { pointerType: "mouse", button: 0, clientX: bounds.left + 58 + share * (bounds.width - 68), clientY: bounds.top + 60 }));
at("pointermove", 1.01);
const told = (name, text) => document.body.append(Object.assign(document.createElement("output"), { id: name, textContent: text }));
told("at-the-end", document.querySelector(".tooltip").innerText);
at("pointermove", 0.5); at("pointerdown", 0.5); at("pointermove", 0.75); at("pointerup", 0.75);
told("zoomed", String(view.from >= 0.45 * view.bins && view.to <= 0.8 * view.bins));
told("button", String(document.querySelector(".controls button").hidden));
at("pointerleave", 0.5);
told("left", String(document.querySelector(".tooltip").hidden));
told("width", String(document.documentElement.scrollWidth <= innerWidth));
</script>)";

/// Returns the DOM of a page after its scripts and `script` ran in a browser. Fails after an error in
/// a script. Writes the opened page and the browser's profile into the folder.
std::string open_in_browser(const std::filesystem::path& folder, std::string page, std::string_view script,
                            int width = 1400) {
  page.insert(page.find("<head>") + 6, kWatch);
  page.insert(page.rfind("</body>"), script);
  write_text(folder / "opened.html", page);
  const std::vector<std::string> arguments{"--headless=new",
                                           "--no-sandbox",
                                           "--disable-gpu",
                                           "--disable-dev-shm-usage",
                                           "--host-resolver-rules=MAP * ~NOTFOUND",
                                           "--user-data-dir=" + (folder / "profile").string(),
                                           fmt::format("--window-size={},1000", width),
                                           "--virtual-time-budget=25000",
                                           "--dump-dom",
                                           "file://" + (folder / "opened.html").string()};
  const std::string dom = Process(folder, arguments, 0, chromium()).wait().out;
  EXPECT_EQ(std::regex_search(dom, std::regex("<html[^>]*data-errors")), false) << dom.substr(0, 400);
  return dom.substr(std::min(dom.size(), dom.find("<body")));  // without the style sheet
}

/// Returns the text of an <output> that a script added.
std::string read_output(const std::string& dom, const std::string& name) {
  std::smatch match;
  const std::regex output("<output id=\"" + name + "\">([^<]*)</output>");
  return std::regex_search(dom, match, output) ? match[1].str() : "nothing";
}

/// A script that records whether the memory of the step is drawn, before and after a zoom.
constexpr const char* kInspectTimeline = R"(<script>
const canvas = document.querySelector("canvas");
const isDrawn = () => canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height).data.some((value) => value > 0);
const record = (name, value) => document.body.append(Object.assign(document.createElement("output"), { id: name, textContent: String(value) }));
record("drawn", canvas.width > 600 && isDrawn());
document.querySelector("#stretch").click();
record("drawn-again", isDrawn());
</script>)";

TEST(TimelinePageTest, DrawsTheMemoryOfAStep) {
  if (chromium().empty()) GTEST_SKIP() << "no chromium; apt-get install chromium";
  const parity::TemporaryFolder folder;
  const Result written =
      Process(folder.path(), {"plan", "--gpu-gb", "8", "--model", "smolvlm-tiny", "--timeline", "step.html"}).wait();
  ASSERT_EQ(written.exit_code, 0) << written.err;
  const std::string dom = open_in_browser(folder.path(), read_text(folder.path() / "step.html"), kInspectTimeline);
  EXPECT_EQ(read_output(dom, "drawn"), "true");
  EXPECT_EQ(read_output(dom, "drawn-again"), "true");
}

class ReportPageTest : public testing::Test {
 protected:
  void SetUp() override {
    if (chromium().empty()) GTEST_SKIP() << "no chromium; apt-get install chromium";
  }

  /// Returns the run's page after its scripts ran in a browser, with two more scripts.
  std::string opened_page(int width = 1400) const {
    const Result written = Process(run_.path(), {"report", run_.path().string()}).wait();
    EXPECT_EQ(written.exit_code, 0) << written.err;
    return open_in_browser(run_.path(), read_text(run_.path() / "report.html"), kHover, width);
  }
  /// Returns the visible part of the page, without scripts.
  static std::string list_shown(const std::string& dom) { return dom.substr(0, dom.find("</main>")); }

  static std::string section(const std::string& dom, const std::string& name) {
    const size_t first = dom.find("data-section=\"" + name + "\"");
    return first == std::string::npos ? "" : dom.substr(first, dom.find("</section>", first) - first);
  }
  /// Returns the number of points by chart title.
  static std::map<std::string, int> count_points(const std::string& dom) {
    const std::regex chart("data-chart=\"([^\"]*)\" data-points=\"(\\d+)\"");
    std::map<std::string, int> points;
    for (std::sregex_iterator match(dom.begin(), dom.end(), chart), end; match != end; ++match) {
      points[(*match)[1]] = std::stoi((*match)[2]);
    }
    return points;
  }
  const RunFolder& run_folder() const { return run_; }

 private:
  RunFolder run_;
};

TEST_F(ReportPageTest, ShowsARun) {
  const RunFolder& run = run_folder();
  run.append_steps(1, 3000, 4000);
  run.append_event({.step = 7, .kind = EventKind::kOomSplit, .message = "halved <b>", .ids = {"sample-<i>"}});
  run.append_prediction({.step = 0, .id = "s", .question = "How many?", .expected_answer = "2", .answer = "3"});
  run.append_prediction({.step = 9, .id = "s", .question = "How many?", .expected_answer = "2", .answer = "2."});
  run.write("ledger.json",
            R"({"dataset":"d.json","samples":10,"used":7,"dropped":3,"failed":0,"not_reached":0,)"
            R"("reasons":{"too long":3},"problems":[{"index":1,"id":"<x>","status":"dropped","message":"long"}]})");
  run.write("plan.json", R"({"gpu":"RTX 4090","gpu_bytes":25000000000,"margin_bytes":1000000000,"memory":)"
                         R"({"weights_bytes":12000000000,"total_bytes":20500000000,"allocated_peak_bytes":19000000000,)"
                         R"("reserved_peak_bytes":20000000000}})");
  run.write("environment.json", R"({"host":"node-7","command":["vlmtrain","a b"],"gpu":null})");
  run.write("config.yaml", "model:\n  path: models/tiny\n");
  const std::string dom = opened_page();

  std::map<std::string, int> points = count_points(dom);
  EXPECT_EQ(points["Loss"], 750) << "four steps a point";
  EXPECT_EQ(points["GPU memory"], 4 * 750);
  EXPECT_EQ(points["Loss by task"], 2 * 750);
  for (const char* name : {"Gradient norm", "Learning rate", "Speed", "Step time", "Micro-batch sizes"}) {
    EXPECT_GE(points[name], 750) << name;
  }
  EXPECT_THAT(list_shown(dom), testing::ContainsRegex("class=\"line\" d=\"M[0-9. ]+L"));
  EXPECT_THAT(list_shown(dom), Not(HasSubstr("NaN")));
  EXPECT_THAT(list_shown(dom), Not(HasSubstr("undefined")));

  EXPECT_THAT(read_output(dom, "at-the-end"), HasSubstr("steps 2,997 – 3,000"));
  EXPECT_THAT(read_output(dom, "at-the-end"),
              testing::ContainsRegex("loss: 0\\.[0-9]+ \\(0\\.[0-9]+ to 0\\.[0-9]+\\)"));
  EXPECT_EQ(read_output(dom, "zoomed"), "true");
  EXPECT_EQ(read_output(dom, "button"), "false") << "the reset button is visible";
  EXPECT_EQ(read_output(dom, "left"), "true");
  EXPECT_EQ(read_output(dom, "width"), "true") << "nothing is wider than the window";

  EXPECT_THAT(list_shown(dom), HasSubstr("Step 3,000 of 4,000"));
  EXPECT_THAT(section(dom, "events"), HasSubstr("halved &lt;b&gt;"));
  EXPECT_THAT(section(dom, "predictions"), testing::ContainsRegex("class=\"right\"><td>step 9</td><td>2\\.</td>"));
  EXPECT_THAT(section(dom, "predictions"), testing::ContainsRegex("class=\"other\"><td>before</td><td>3</td>"));
  EXPECT_THAT(section(dom, "memory"), HasSubstr("12.0 GB"));
  EXPECT_THAT(section(dom, "ledger"), HasSubstr("&lt;x&gt;"));
  EXPECT_THAT(section(dom, "environment"), HasSubstr("vlmtrain 'a b'"));
  EXPECT_THAT(section(dom, "config"), HasSubstr("models/tiny"));
  EXPECT_THAT(section(dom, "tasks"), HasSubstr("read"));
}

/// Training loss falls and validation loss turns; GradNorm changes weights; a task's name contains
/// markup.
TEST_F(ReportPageTest, ShowsARunThatOverfits) {
  const RunFolder& run = run_folder();
  run.append_evaluated_steps(200, 10);
  report::StepMetrics last = RunFolder::example_step(201, 400);
  last.evaluation = RunFolder::example_evaluation(0.9);
  last.evaluation->tasks["<img src=x onerror=alert(1)>"] = {.loss = 2, .label_tokens = 1, .samples = 1};
  last.evaluation->tasks["<img src=x onerror=alert(1)>"].metrics = {{"anls", 0.25}, {"wer", std::nullopt}};
  last.evaluation->total.metrics = {{"anls", 0.5}, {"wer", 1.5}};
  last.tasks["<img src=x onerror=alert(1)>"] = {.loss = 2, .label_tokens = 1, .samples = 1};
  last.tasks["read"].weight = 1.25;
  run.append("metrics.jsonl", last.to_json_line() + "\n");
  for (const int width : {1400, 480}) {
    SCOPED_TRACE(width);
    const std::string dom = opened_page(width);
    const std::map<std::string, int> points = count_points(dom);
    EXPECT_EQ(points.at("Loss"), 201 + 21) << "of training and of validation";
    EXPECT_EQ(points.at("Exact match"), 21 + 21) << "of all, and of the one task with answers";
    EXPECT_EQ(points.at("Validation loss by task"), 2 * 21 + 1);
    EXPECT_EQ(points.at("Weight by task"), 2 * 201 + 1);
    EXPECT_THAT(list_shown(dom), testing::ContainsRegex("class=\"join\"[^>]* d=\"M[0-9. ]+L"));
    EXPECT_THAT(list_shown(dom), HasSubstr("best at step 100</text>"));
    EXPECT_THAT(list_shown(dom),
                HasSubstr("<b>Best at step 100</b>: validation loss 0.7000, exact match 25 %; the newest, at "
                          "step 201, 1.1000, 45 %"));
    EXPECT_THAT(read_output(dom, "at-the-end"), HasSubstr("validation loss: 1.1000 at step 201"));
    EXPECT_THAT(section(dom, "metrics"),
                HasSubstr("<td>&lt;img src=x onerror=alert(1)&gt;</td><td>0.2500</td><td>–</td>"));
    EXPECT_THAT(section(dom, "metrics"), HasSubstr("<td>all</td><td>0.5000</td><td>1.5000</td>"));
    EXPECT_THAT(section(dom, "epochs"), testing::ContainsRegex("<td>1</td><td>1 – 100</td><td>[0-9.]+</td><td><span "
                                                               "class=\"best\">0.7000</span></td><td>25 %</td>"));
    EXPECT_THAT(section(dom, "tasks"), HasSubstr("&lt;img src=x"));
    EXPECT_THAT(list_shown(dom), Not(HasSubstr("<img")));
    EXPECT_THAT(list_shown(dom), Not(HasSubstr("NaN")));
    EXPECT_THAT(list_shown(dom), Not(HasSubstr("undefined")));
    EXPECT_EQ(read_output(dom, "zoomed"), "true");
    EXPECT_EQ(read_output(dom, "width"), "true") << "nothing is wider than the window";
  }
}

TEST_F(ReportPageTest, ShowsMasks) {
  const RunFolder& run = run_folder();
  std::string lines;
  for (int64_t step = 1; step <= 20; ++step) {
    report::StepMetrics metrics = RunFolder::example_step(step, 20);
    metrics.mask_learning_rate = 1e-3;
    metrics.loss_components = report::LossComponents{.text = 1, .bce = 0.5, .dice = 0.25};
    if (step % 10 == 0) {
      metrics.evaluation = RunFolder::example_evaluation(0.5);
      metrics.evaluation->is_best = step == 20;
      metrics.evaluation->total.masks = report::MaskMetrics{.masks = 9, .dice = 0.8731, .iou = 0.75};
      metrics.evaluation->mask_metrics_by_structure["<b>liver"] = {
          .masks = 9, .dice = 0.8731, .iou = 0.75, .hausdorff95 = 3.125};
    }
    lines += metrics.to_json_line() + "\n";
  }
  run.append("metrics.jsonl", lines);
  const std::string pixel =
      "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNgAAAAAgAB"
      "SK+kcQAAAABJRU5ErkJggg==";
  run.append_prediction({.step = 20,
                         .id = "s",
                         .question = "Segment.",
                         .expected_answer = "<SEG>",
                         .answer = "<SEG>",
                         .masks = {{.structure = "<i>liver", .dice = 0.9, .overlay_uri = pixel}}});
  const std::string dom = opened_page();
  const std::map<std::string, int> points = count_points(dom);
  EXPECT_EQ(points.at("Loss by part"), 3 * 20);
  EXPECT_EQ(points.at("Dice"), 2 * 2) << "of all masks, and of those of the liver";
  EXPECT_EQ(points.at("Learning rate"), 2 * 20) << "masks have their own learning rate";
  EXPECT_THAT(list_shown(dom), HasSubstr("exact match 25 %, Dice 0.873"));
  EXPECT_THAT(section(dom, "masks"),
              HasSubstr("&lt;b&gt;liver</td><td>9</td><td>0.873</td><td>0.750</td><td>3.13</td>"));
  EXPECT_THAT(section(dom, "masks"), HasSubstr("<td>all</td><td>9</td><td>0.873</td><td>0.750</td><td>–</td>"));
  EXPECT_THAT(section(dom, "predictions"), HasSubstr("<img src=\"" + pixel));
  EXPECT_THAT(section(dom, "predictions"), HasSubstr("<figcaption>&lt;i&gt;liver, Dice 0.900</figcaption>"));
  EXPECT_THAT(list_shown(dom), Not(HasSubstr("NaN")));
  EXPECT_THAT(list_shown(dom), Not(HasSubstr("undefined")));
  EXPECT_EQ(read_output(dom, "width"), "true") << "nothing is wider than the window";
}

TEST_F(ReportPageTest, ReloadsWhileRunning) {
  run_folder().append_steps(1, 5, 10);
  const std::string dom = opened_page(480);
  EXPECT_THAT(list_shown(dom), HasSubstr("badge running"));
  EXPECT_THAT(dom.substr(0, 100), testing::ContainsRegex("data-reads=\"[1-9]"));
  EXPECT_EQ(read_output(dom, "width"), "true") << "nothing is wider than a narrow window";
}

TEST_F(ReportPageTest, DoesNotReloadWhenFinished) {
  run_folder().append_steps(1, 1, 1);
  const std::string dom = opened_page();
  EXPECT_THAT(list_shown(dom), HasSubstr("badge finished"));
  EXPECT_THAT(dom.substr(0, 100), Not(HasSubstr("data-reads")));
}

TEST_F(ReportPageTest, AcceptsARunWithoutSteps) {
  run_folder().write("config.yaml", "model:\n  path: m\n");
  const std::string dom = opened_page();
  EXPECT_THAT(list_shown(dom), HasSubstr("No step has finished yet."));
}

}  // namespace

}  // namespace vlmtrain::e2e

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "app/commands.h"
#include "app/doctor/examinations.h"
#include "app/openmp_waiting.h"
#include "app/preset_folder.h"
#include "app/run_device.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/printable.h"
#include "vlmtrain/io/json_text.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/foreign_settings.h"

namespace vlmtrain::app {

namespace {

void check_device(const std::string& device) {
  if (device == "auto" || device == "cpu" || memory::cuda_index(device) || virtual_card(device)) return;
  throw usage_error("device {}: unknown; write auto, cpu, cuda, cuda:N or virtual:CARD", device);
}

/// The smallest preset's files, where a folder for them can be had.
std::optional<PresetFolder> small_model() {
  for (const char* const folder : {"", "/dev/shm", "."}) {
    if (*folder != '\0') setenv("TMPDIR", folder, /*overwrite=*/1);
    try {
      return std::optional<PresetFolder>(std::in_place, "smolvlm-tiny", "");
    } catch (const std::exception&) {
      // The disk's examination says why.
    }
  }
  return std::nullopt;
}

/// What the configuration says to the other examinations.
void take_from_config(const Section& config, Question& question) {
  question.output_dir = config.facts.value("output_dir", "");
  question.precision = engine::precision_by_name(config.facts.value("precision", "")).value_or(question.precision);
}

Section examine_step_if_possible(const Question& question, const Section& driver) {
  if (!driver.must_be_mended()) return examine_step(question, driver.facts.value("device", "cpu"));
  Section section{.name = "step"};
  section.note("not tried, since there is no device to try it on");
  return section;
}

std::vector<Section> examine(Question question) {
  std::vector<Section> sections{examine_processor(), examine_host_memory(), examine_libraries(question)};
  const Section driver = examine_driver(question);
  sections.push_back(driver);
  std::optional<Section> config;
  if (!question.config.empty()) {
    config = examine_config(question);
    take_from_config(*config, question);
  }
  sections.push_back(examine_disk(question));
  if (config) sections.push_back(*config);
  const auto model = small_model();
  if (model) question.model = model->path();
  sections.push_back(examine_planning(question));
  sections.push_back(examine_step_if_possible(question, driver));
  return sections;
}

/// What all comes to.
struct Verdict {
  std::string device;
  std::string first_to_mend;  ///< empty: nothing

  bool would_train() const { return first_to_mend.empty(); }
  std::string words() const {
    if (!would_train()) return "training would not start. The first thing to mend: " + first_to_mend;
    return fmt::format("training would start on {}; nothing has to be mended", device == "cpu" ? "the CPU" : device);
  }
};

Verdict verdict_on(const std::vector<Section>& sections) {
  Verdict verdict;
  for (const auto& section : sections) {
    if (section.name == "driver") verdict.device = section.facts.value("device", "cpu");
    for (const auto& finding : section.findings) {
      if (finding.severity != Severity::kMend || !verdict.first_to_mend.empty()) continue;
      verdict.first_to_mend = fmt::format("{}: {}", section.name, finding.text);
    }
  }
  return verdict;
}

nlohmann::ordered_json json_of(const std::vector<Section>& sections, const Verdict& verdict, double seconds) {
  nlohmann::ordered_json json{{"would_train", verdict.would_train()},
                              {"device", verdict.device},
                              {"first_to_mend", nullptr},
                              {"vlmtrain", VLMTRAIN_VERSION},
                              {"seconds", seconds},
                              {"findings", nlohmann::ordered_json::array()}};
  if (!verdict.would_train()) json["first_to_mend"] = verdict.first_to_mend;
  for (const auto& section : sections) {
    for (const auto& finding : section.findings) {
      json["findings"].push_back(
          {{"severity", name_of(finding.severity)}, {"about", section.name}, {"text", finding.text}});
    }
    json[section.name] = section.facts;
  }
  return json;
}

void print(const std::vector<Section>& sections, const Verdict& verdict) {
  for (const auto& section : sections) {
    for (const auto& finding : section.findings) {
      fmt::print("{:<5} {:<10} {}\n", name_of(finding.severity), section.name, printable(finding.text));
    }
  }
  fmt::print("{}\n", printable(verdict.words()));
}

}  // namespace

ExitCode doctor(const DoctorArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  start_log(/*quiet=*/true);
  check_device(arguments.device);
  restart_with_openmp_waiting();  // as in a run
  Question question{.device = arguments.device,
                    .config = arguments.config,
                    .overrides = arguments.overrides,
                    .output_dir = arguments.output_dir};
  question.foreign_settings = memory::take_out_foreign_settings();
  const auto sections = examine(std::move(question));
  const Verdict verdict = verdict_on(sections);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) {
    fmt::print("{}\n", io::json_text(json_of(sections, verdict, seconds)));
  } else {
    print(sections, verdict);
  }
  return verdict.would_train() ? ExitCode::kDone : ExitCode::kFailed;
}

}  // namespace vlmtrain::app

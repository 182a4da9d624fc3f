#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <optional>

#include "app/commands/commands.h"
#include "app/doctor/examination.h"
#include "app/process/device.h"
#include "app/process/model_folder.h"
#include "app/settings/process_setup.h"
#include "vlmtrain/base/log.h"
#include "vlmtrain/base/text_format.h"
#include "vlmtrain/io/json.h"
#include "vlmtrain/memory/device.h"
#include "vlmtrain/memory/libtorch_env.h"

namespace vlmtrain::app {

namespace {

void check_doctor_device(const std::string& device) {
  if (device == "auto" || device == "cpu" || memory::parse_cuda_index(device) || parse_virtual_gpu(device)) return;
  throw usage_error("--device {}: unknown device; must be auto, cpu, cuda, cuda:N or virtual:NAME", device);
}

/// Returns a temporary folder with the files of the smallest preset, or nothing if no folder is
/// writable. Sets TMPDIR to the folder that works, for later examinations.
std::optional<PresetFolder> make_small_model_folder() {
  for (const char* const folder : {"", "/dev/shm", "."}) {
    if (*folder != '\0') setenv("TMPDIR", folder, /*overwrite=*/1);
    try {
      return std::optional<PresetFolder>(std::in_place, "smolvlm-tiny", "");
    } catch (const std::exception&) {
      // examine_disk() reports the reason.
    }
  }
  return std::nullopt;
}

/// Copies the output folder and the precision of the configuration to `context`, for later
/// examinations.
void copy_config_facts(const Section& config_section, DoctorContext& context) {
  context.output_dir = config_section.facts.value("output_dir", "");
  context.precision = engine::parse_precision(config_section.facts.value("precision", "")).value_or(context.precision);
}

Section examine_step_if_device_usable(const DoctorContext& context, const Section& driver_section) {
  if (!driver_section.has_failure()) return examine_training_step(context, driver_section.facts.value("device", "cpu"));
  Section section{.name = "step"};
  section.warn("not tried, because no device is usable");
  return section;
}

/// Runs all examinations, each after those whose results it uses: the disk and the step use the
/// configuration, and the step uses the device that examine_driver() found.
std::vector<Section> run_examinations(DoctorContext context) {
  std::vector<Section> sections{examine_cpu(), examine_host_memory(), examine_libraries(context)};
  const Section driver_section = examine_driver(context);
  sections.push_back(driver_section);
  std::optional<Section> config_section;
  if (!context.config.empty()) {
    config_section = examine_config(context);
    copy_config_facts(*config_section, context);
  }
  sections.push_back(examine_disk(context));
  if (config_section) sections.push_back(*config_section);
  const auto model_folder = make_small_model_folder();
  if (model_folder) context.model = model_folder->path();
  sections.push_back(examine_planning(context));
  sections.push_back(examine_step_if_device_usable(context, driver_section));
  return sections;
}

/// The summary of all examinations.
struct Diagnosis {
  std::string device;         ///< cpu, cuda:N or virtual:NAME
  std::string first_failure;  ///< empty if no examination failed

  bool can_train() const { return first_failure.empty(); }
  std::string to_text() const {
    if (!can_train()) return "training would not start. The first problem to fix: " + first_failure;
    return fmt::format("training would start on {}; there is no problem to fix", device == "cpu" ? "the CPU" : device);
  }
};

Diagnosis make_diagnosis(const std::vector<Section>& sections) {
  Diagnosis diagnosis;
  for (const auto& section : sections) {
    if (section.name == "driver") diagnosis.device = section.facts.value("device", "cpu");
    for (const auto& finding : section.findings) {
      if (finding.severity != Severity::kFail || !diagnosis.first_failure.empty()) continue;
      diagnosis.first_failure = fmt::format("{}: {}", section.name, finding.text);
    }
  }
  return diagnosis;
}

/// Returns the word of earlier versions, which the JSON field `severity` keeps for scripts.
const char* to_legacy_severity(Severity severity) {
  switch (severity) {
    case Severity::kFail:
      return "mend";
    case Severity::kWarn:
      return "note";
    case Severity::kOk:
      break;
  }
  return "ok";
}

/// Adds the earlier names of those fields that `object` contains.
void add_legacy_fields(nlohmann::ordered_json& object, std::initializer_list<io::FieldAlias> aliases) {
  for (const io::FieldAlias alias : aliases) {
    if (object.contains(alias.name)) io::add_field_aliases(object, {alias});
  }
}

/// Returns the facts of a section, also under the names of earlier versions.
nlohmann::ordered_json make_facts_json(const Section& section) {
  nlohmann::ordered_json facts = section.facts;
  if (section.name == "disk") {
    for (auto& folder : facts) add_legacy_fields(folder, {{"requested", "asked"}});
  }
  if (facts.contains("custom_kernels")) add_legacy_fields(facts["custom_kernels"], {{"disabled", "left_out"}});
  add_legacy_fields(facts, {{"gpus", "cards"},
                            {"available_bytes", "room_bytes"},
                            {"custom_kernels", "own_kernels"},
                            {"dry_run", "rehearsed"}});
  return facts;
}

nlohmann::ordered_json to_json(const std::vector<Section>& sections, const Diagnosis& diagnosis, double seconds) {
  nlohmann::ordered_json json{{"would_train", diagnosis.can_train()},
                              {"device", diagnosis.device},
                              {"first_failure", nullptr},
                              {"vlmtrain", VLMTRAIN_VERSION},
                              {"seconds", seconds},
                              {"findings", nlohmann::ordered_json::array()}};
  if (!diagnosis.can_train()) json["first_failure"] = diagnosis.first_failure;
  io::add_field_aliases(json, {{"first_failure", "first_to_mend"}});
  for (const auto& section : sections) {
    for (const auto& finding : section.findings) {
      json["findings"].push_back({{"status", to_string(finding.severity)},
                                  {"severity", to_legacy_severity(finding.severity)},
                                  {"about", section.name},
                                  {"text", finding.text}});
    }
    json[section.name] = make_facts_json(section);
  }
  return json;
}

void print_findings(const std::vector<Section>& sections, const Diagnosis& diagnosis) {
  for (const auto& section : sections) {
    for (const auto& finding : section.findings) {
      fmt::print("{:<5} {:<10} {}\n", to_string(finding.severity), section.name, to_printable(finding.text));
    }
  }
  fmt::print("{}\n", to_printable(diagnosis.to_text()));
}

}  // namespace

ExitCode doctor(const DoctorArguments& arguments) {
  const auto start = std::chrono::steady_clock::now();
  init_logging(/*quiet=*/true);
  check_doctor_device(arguments.device);
  restart_with_openmp_wait_policy();  // as a run does, so that steps are as fast
  DoctorContext context{.device = arguments.device,
                        .config = arguments.config,
                        .overrides = arguments.overrides,
                        .output_dir = arguments.output_dir};
  context.ignored_env_settings = memory::unset_libtorch_env_settings();
  const auto sections = run_examinations(std::move(context));
  const Diagnosis diagnosis = make_diagnosis(sections);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (arguments.json) {
    fmt::print("{}\n", io::to_json_string(to_json(sections, diagnosis, seconds)));
  } else {
    print_findings(sections, diagnosis);
  }
  return diagnosis.can_train() ? ExitCode::kSuccess : ExitCode::kFailed;
}

}  // namespace vlmtrain::app

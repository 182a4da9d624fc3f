#include "app/doctor/examination.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "vlmtrain/base/error.h"
#include "vlmtrain/base/process.h"
#include "vlmtrain/io/json.h"

namespace vlmtrain::app {

namespace {

constexpr std::array kAllSeverities{Severity::kOk, Severity::kWarn, Severity::kFail};

/// Prints the section as one line of JSON, after an empty line that ends incomplete output.
void print_section_json(const Section& section) {
  nlohmann::ordered_json json{{"facts", section.facts}, {"findings", nlohmann::ordered_json::array()}};
  for (const auto& finding : section.findings) {
    json["findings"].push_back({to_string(finding.severity), finding.text});
  }
  std::printf("\n%s\n", io::to_json_string(json).c_str());
}

/// Parses the last line of `out`, the output of print_section_json(); libraries may have printed
/// other lines before. Returns false if there is no such line.
bool try_parse_section(const std::string& out, Section& section) {
  const size_t end = out.find_last_not_of('\n');
  if (end == std::string::npos) return false;
  const size_t line_break_position = out.rfind('\n', end);
  const size_t begin = line_break_position == std::string::npos ? 0 : line_break_position + 1;
  const auto json = nlohmann::ordered_json::parse(out.substr(begin, end + 1 - begin), nullptr,
                                                  /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("facts") || !json.contains("findings")) return false;
  section.facts = json["facts"];
  for (const auto& finding : json["findings"]) {
    const auto severity = std::ranges::find_if(
        kAllSeverities, [&](Severity candidate) { return finding.at(0).get<std::string>() == to_string(candidate); });
    section.add(*severity, finding.at(1).get<std::string>());
  }
  return true;
}

}  // namespace

const char* to_string(Severity severity) {
  switch (severity) {
    case Severity::kFail:
      return "fail";
    case Severity::kWarn:
      return "warn";
    case Severity::kOk:
      break;
  }
  return "ok";
}

void Section::add(Severity severity, const std::string& text) {
  std::string line;
  bool is_after_line_break = false;
  for (const char character : text) {
    if (character == '\n') {
      is_after_line_break = true;
    } else if (!is_after_line_break || character != ' ') {
      if (std::exchange(is_after_line_break, false)) line += ' ';
      line += character;
    }
  }
  findings.push_back({severity, std::move(line)});
}

bool Section::has_failure() const {
  return std::ranges::any_of(findings, [](const Finding& finding) { return finding.severity == Severity::kFail; });
}

Section examine_in_subprocess(const ExaminationSettings& examination, const std::function<void(Section&)>& examine) {
  Section section{.name = examination.name};
  const auto examine_and_print = [&] {
    Section child_section{.name = examination.name};
    try {
      examine(child_section);
    } catch (const UserError& error) {
      child_section.add(examination.failure_severity, error.what());
    } catch (const std::exception& error) {
      child_section.add(examination.failure_severity,
                        fmt::format("{} failed: {}", examination.activity, get_first_line(error.what())));
    }
    print_section_json(child_section);
  };
  try {
    const SubprocessResult result = run_in_subprocess(examine_and_print, examination.timeout_seconds);
    if (result.succeeded() && try_parse_section(result.stdout_text, section)) return section;
    section.facts["failure"] = result.describe_exit();
    section.add(examination.failure_severity,
                fmt::format("{} {}{}", examination.activity, result.describe_exit(),
                            examination.suggestion.empty() ? "" : "; " + examination.suggestion));
  } catch (const std::exception& error) {
    section.facts["failure"] = error.what();
    section.add(examination.failure_severity, fmt::format("{} failed: {}", examination.activity, error.what()));
  }
  return section;
}

}  // namespace vlmtrain::app

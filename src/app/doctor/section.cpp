#include "app/doctor/section.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <optional>
#include <utility>

#include "vlmtrain/base/apart.h"
#include "vlmtrain/base/error.h"
#include "vlmtrain/base/first_line.h"
#include "vlmtrain/io/json_text.h"

namespace vlmtrain::app {

namespace {

constexpr std::array kSeverities{Severity::kOk, Severity::kNote, Severity::kMend};

void print_section(const Section& section) {
  nlohmann::ordered_json json{{"facts", section.facts}, {"findings", nlohmann::ordered_json::array()}};
  for (const auto& finding : section.findings) {
    json["findings"].push_back({name_of(finding.severity), finding.text});
  }
  std::printf("\n%s\n", io::json_text(json).c_str());
}

/// What print_section() wrote behind whatever libraries did.
bool read_section(const std::string& out, Section& section) {
  const size_t end = out.find_last_not_of('\n');
  if (end == std::string::npos) return false;
  const size_t before = out.rfind('\n', end);
  const size_t first = before == std::string::npos ? 0 : before + 1;
  const auto json = nlohmann::ordered_json::parse(out.substr(first, end + 1 - first), nullptr,
                                                  /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("facts") || !json.contains("findings")) return false;
  section.facts = json["facts"];
  for (const auto& finding : json["findings"]) {
    const auto severity = std::ranges::find_if(
        kSeverities, [&](Severity one) { return finding.at(0).get<std::string>() == name_of(one); });
    section.add(*severity, finding.at(1).get<std::string>());
  }
  return true;
}

}  // namespace

const char* name_of(Severity severity) {
  switch (severity) {
    case Severity::kMend:
      return "mend";
    case Severity::kNote:
      return "note";
    case Severity::kOk:
      break;
  }
  return "ok";
}

void Section::add(Severity severity, const std::string& text) {
  std::string line;
  bool is_after_break = false;
  for (const char character : text) {
    if (character == '\n') {
      is_after_break = true;
    } else if (!is_after_break || character != ' ') {
      if (std::exchange(is_after_break, false)) line += ' ';
      line += character;
    }
  }
  findings.push_back({severity, std::move(line)});
}

bool Section::must_be_mended() const {
  return std::ranges::any_of(findings, [](const Finding& one) { return one.severity == Severity::kMend; });
}

Section examine_apart(const Examination& examination, const std::function<void(Section&)>& examine) {
  Section section{.name = examination.name};
  const auto examine_and_print = [&] {
    Section found{.name = examination.name};
    try {
      examine(found);
    } catch (const UserError& error) {
      found.add(examination.on_failure, error.what());
    } catch (const std::exception& error) {
      found.add(examination.on_failure, fmt::format("{} failed: {}", examination.doing, first_line(error.what())));
    }
    print_section(found);
  };
  try {
    const ApartResult result = do_apart(examine_and_print, examination.most_seconds);
    if (result.is_done() && read_section(result.out, section)) return section;
    section.facts["failure"] = result.ending();
    section.add(examination.on_failure, fmt::format("{} {}{}", examination.doing, result.ending(),
                                                    examination.remedy.empty() ? "" : "; " + examination.remedy));
  } catch (const std::exception& error) {
    section.facts["failure"] = error.what();
    section.add(examination.on_failure, fmt::format("{} failed: {}", examination.doing, error.what()));
  }
  return section;
}

}  // namespace vlmtrain::app

#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/engine/options.h"

namespace vlmtrain::app {

enum class Severity {
  kOk,
  kWarn,  ///< worth knowing; training starts all the same
  kFail,  ///< training would not start
};

/// As it is printed: ok, note, mend.
const char* to_string(Severity severity);

struct Finding {
  Severity severity = Severity::kOk;
  std::string text;  ///< one line
};

/// What was found out about one thing: for people, and all of it for scripts.
struct Section {
  std::string name{};
  std::vector<Finding> findings{};
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();

  /// Line breaks and the spaces behind them become one space.
  void add(Severity severity, const std::string& text);
  void ok(const std::string& text) { add(Severity::kOk, text); }
  void warn(const std::string& text) { add(Severity::kWarn, text); }
  void fail(const std::string& text) { add(Severity::kFail, text); }
  bool has_failure() const;
};

/// How something is examined.
struct Examination {
  std::string name;  ///< of the section
  /// What it is to a person that this fails: fills in "… was ended by signal 11": "asking the driver".
  std::string activity;
  std::string suggestion{};  ///< for a crash or a hang, which say nothing of themselves
  double timeout_seconds = 30;
  Severity on_failure = Severity::kFail;  ///< of an error, a crash, a hang
};

/// Does `examine` in a process of its own (base/apart.h): on an odd machine it may throw, crash or hang, and that is a
/// finding. Never throws.
Section examine_in_subprocess(const Examination& examination, const std::function<void(Section&)>& examine);

/// What the doctor is asked, and what has been found out by the time an examination begins.
struct DoctorContext {
  std::string device = "auto";
  std::string config{};
  std::vector<std::string> overrides{};
  std::filesystem::path output_dir{};  ///< of the flag or the configuration; empty: none is given
  engine::Precision precision = engine::Precision::kBf16;
  std::vector<std::string> foreign_settings{};  ///< that the environment held (memory/foreign_settings.h)
  std::filesystem::path model{};                ///< folder with the files of a small preset; empty: there is none

  bool is_virtual() const { return device.starts_with("virtual:"); }
};

// Each examines one thing, in a process of its own, and never throws.

/// Model, cores, and which kernels LibTorch takes.
Section examine_processor();
/// What there is of the host's memory, and what bounds it.
Section examine_host_memory();
/// LibTorch's libraries.
Section examine_libraries(const DoctorContext& context);
/// Driver and cards. facts: "device", what training would be on: cpu, cuda:N or virtual:CARD.
Section examine_driver(const DoctorContext& context);
/// The folder of results and the one of temporary files.
Section examine_disk(const DoctorContext& context);
/// What train would refuse of a configuration and of the files that it names. facts: "precision", "output_dir".
Section examine_config(const DoctorContext& context);
/// Whether planning works: a small rehearsal in its child process.
Section examine_planning(const DoctorContext& context);
/// Two seconds of training on `device`, compared with the CPU.
Section examine_step(const DoctorContext& context, const std::string& device);

}  // namespace vlmtrain::app

#pragma once

#include <nlohmann/json.hpp>

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "vlmtrain/engine/settings/options.h"

namespace vlmtrain::app {

/// The meaning of a finding for training.
enum class Severity {
  kOk,
  kWarn,  ///< worth knowing; training starts all the same
  kFail,  ///< training would not start
};

/// Returns the word that is printed: ok, warn or fail.
const char* to_string(Severity severity);

/// One result of an examination.
struct Finding {
  Severity severity = Severity::kOk;
  std::string text;  ///< one line
};

/// The findings about one subject, as text for people and as facts for scripts.
struct Section {
  std::string name{};
  std::vector<Finding> findings{};
  nlohmann::ordered_json facts = nlohmann::ordered_json::object();

  /// Adds a finding. Line breaks with the spaces that follow become one space.
  void add(Severity severity, const std::string& text);
  void ok(const std::string& text) { add(Severity::kOk, text); }
  void warn(const std::string& text) { add(Severity::kWarn, text); }
  void fail(const std::string& text) { add(Severity::kFail, text); }
  bool has_failure() const;
};

/// The settings of one examination.
struct Examination {
  std::string name;  ///< name of its section
  /// Completes "… was ended by signal 11", for example "querying the driver".
  std::string activity;
  std::string suggestion{};  ///< advice after a crash or a timeout, which have no message of their own
  double timeout_seconds = 30;
  Severity on_failure = Severity::kFail;  ///< of an error, a crash or a timeout
};

/// Calls `examine` in a child process (base/process.h), because it may throw, crash or hang on a
/// broken machine; that is a finding then. Never throws.
Section examine_in_subprocess(const Examination& examination, const std::function<void(Section&)>& examine);

/// The request to the doctor, and the results of earlier examinations.
struct DoctorContext {
  std::string device = "auto";
  std::string config{};
  std::vector<std::string> overrides{};
  std::filesystem::path output_dir{};  ///< from the flag or the configuration; empty: none
  engine::Precision precision = engine::Precision::kBf16;
  std::vector<std::string> foreign_settings{};  ///< of the environment (memory/foreign_settings.h)
  std::filesystem::path model{};                ///< folder with the files of a small preset; empty: none

  bool is_virtual() const { return device.starts_with("virtual:"); }
};

// Each examines one subject in a child process and never throws.

/// Examines the processor: model, cores, and LibTorch's instruction set.
Section examine_processor();

/// Examines the host's memory and its limits.
Section examine_host_memory();

/// Examines LibTorch's libraries.
Section examine_libraries(const DoctorContext& context);

/// Examines driver and GPUs. facts: "device", the device of a training: cpu, cuda:N or
/// virtual:NAME.
Section examine_driver(const DoctorContext& context);

/// Examines the folder of results and that of temporary files.
Section examine_disk(const DoctorContext& context);

/// Examines a configuration and the files that it names, as train would. facts: "precision",
/// "output_dir".
Section examine_config(const DoctorContext& context);

/// Examines whether planning works, with a small dry run in its child process.
Section examine_planning(const DoctorContext& context);

/// Trains two seconds on `device` and compares the results with those of the CPU.
Section examine_step(const DoctorContext& context, const std::string& device);

}  // namespace vlmtrain::app
